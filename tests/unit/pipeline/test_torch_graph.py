"""Where a graph may be cut: any two units can be in different stages, whatever the operations share or overwrite."""

from __future__ import annotations

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason=NotInstalled.TORCH)

from jellybean.pipeline import TRACERS, CallArguments, graph_facts, trace
from jellybean.training import cut_module

nn = torch.nn


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)


class Parts(Base):
    """Results that are no tensors: chunks, an LSTM's state, indices."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        first, second = self.one(x).chunk(2, dim=1)
        y = self.two(torch.cat([second, first], dim=1))
        outputs, (state, _) = self.lstm(y.unsqueeze(1))
        largest, places = (outputs[:, 0] + state[-1]).max(dim=1)
        return self.three(y) * largest.unsqueeze(1) + places.unsqueeze(1)


class WrittenAfterSkip(Base):
    """An early reader, a write in place into a view of the same memory, a late reader."""

    def forward(self, x):
        y = self.one(x) * 1.0
        early = self.two(y + 1.0)
        y[:, :2].mul_(2.0)
        return self.three(early) + y


class Masked(Base):
    """Values that depend on the arguments alone: a mask, positions, and one that is written."""

    def forward(self, x, mask):
        wide = mask[:, None].expand(-1, 4).clone()
        wide[:, 0] = True
        y = torch.where(wide, self.one(x), 0.0)
        y = torch.where(wide, self.two(y), 0.0) + torch.arange(x.shape[1])
        return torch.where(wide, self.three(y), 0.0).reshape(x.shape[0], -1)


class WrittenArgument(Base):
    """An argument that a trained value is written into."""

    def forward(self, x, extra):
        extra = extra * 1.0
        y = self.two(self.one(x))
        extra[:, :2] = y[:, :2]
        return self.three(extra) + y


class Statistics(Base):
    """Batch norm, and a buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        y = self.norm(self.one(x))
        self.calls += 1
        return self.three(torch.relu(self.two(y))) / self.calls


ROWS, MASK = torch.randn(3, 4), torch.tensor([True, False, True])
CASES = [
    (Parts, (ROWS,), "torch.fx"),
    (Parts, (ROWS,), "torch.export"),
    (WrittenAfterSkip, (ROWS,), "torch.fx"),
    (WrittenAfterSkip, (ROWS,), "torch.export"),
    (Masked, (ROWS, MASK), "torch.export"),  # torch.fx takes no assignment to items
    (WrittenArgument, (ROWS, torch.randn(3, 4)), "torch.export"),
    (Statistics, (ROWS,), "torch.export"),  # nor to attributes
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "tensors", "tracer"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_place(make, tensors, tracer):
    torch.manual_seed(0)
    module = make()
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    outputs = module(*tensors)
    expected = torch.autograd.grad(outputs.sum(), list(module.parameters()))
    after = {name: value.clone() for name, value in module.named_buffers()}
    module.load_state_dict(buffers, strict=False)
    traced = trace(module, CallArguments.of(tensors), tracer=tracer)
    facts = graph_facts(traced, tensors)
    assert len(facts.units) >= 3
    for place in range(1, len(facts.units)):
        module.load_state_dict(buffers, strict=False)
        stage_of = {name: int(number >= place) for number, unit in enumerate(facts.units) for name in unit}
        first, second = cut_module(traced, facts, stage_of).stages
        crossing = first.module(*(tensors[index].clone() for index in first.inputs.arguments))
        assert all(isinstance(value, torch.Tensor) for value in crossing)
        (found,) = second.module(*crossing, *(tensors[index].clone() for index in second.inputs.arguments))
        assert torch.allclose(found, outputs), place
        gradients = torch.autograd.grad(found.sum(), list(module.parameters()))
        assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(gradients, expected, strict=True)), place
        assert all(torch.equal(value, after[name]) for name, value in module.named_buffers()), place
        assert not first.state & second.state
        assert first.state | second.state == set(after)


def test_masks_do_not_cross():
    module, tensors = Masked(), (torch.randn(3, 4), torch.tensor([True, False, True]))
    traced = trace(module, CallArguments.of(tensors))
    facts = graph_facts(traced, tensors)
    for place in range(1, len(facts.units)):
        stage_of = {name: int(number >= place) for number, unit in enumerate(facts.units) for name in unit}
        first, second = cut_module(traced, facts, stage_of).stages
        assert len(second.received) == 1
        assert second.inputs.differentiable == (True,)
    assert first.inputs.arguments == (0, 1)
    assert second.inputs.arguments == (1,)  # the mask comes from the data, not from the first stage


@pytest.mark.parametrize("tracer", TRACERS)
def test_nothing_goes_back_below_the_lowest_trained_layer(tracer):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    module[2].requires_grad_(False)
    x = torch.randn(3, 4)
    traced = trace(module, CallArguments.of((x,)), tracer=tracer)
    facts = graph_facts(traced, (x,))
    stage_of = {name: min(2, number // 2) for number, unit in enumerate(facts.units) for name in unit}
    stages = cut_module(traced, facts, stage_of).stages
    assert [stage.inputs.expects_gradient for stage in stages] == [False, False, True]
    assert not any(stage.inputs.sends_gradient for stage in stages)


class Unset(nn.Module):
    """Reads buffers of NaN, which nobody writes, and one that it counts in."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("last", torch.tensor(float("nan")))
        self.register_buffer("means", torch.full((4,), float("nan"), dtype=torch.bfloat16))
        self.register_buffer("seen", torch.tensor(float("nan")))

    def forward(self, x):
        self.seen.nan_to_num_().add_(1)
        x = self.first(x) + torch.nan_to_num(self.last)
        return self.second(x) + torch.nan_to_num(self.means)


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_buffer_of_nan_that_is_only_read_is_not_written(tracer):
    tensors = (torch.randn(3, 4),)
    facts = graph_facts(trace(Unset(), CallArguments.of(tensors), tracer=tracer), tensors)
    assert facts.state == {"seen"}
