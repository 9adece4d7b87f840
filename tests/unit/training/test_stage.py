"""A single stage: split backward, mixed precision, weight versions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training import StageCopy
from jellybean.training.checkpoints.states import BUFFER, belongs_to, collect_state, restore_state
from jellybean.training.stages.all_reduce import ProcessGroups
from jellybean.training.stages.evaluation_pass import EvaluationStage
from jellybean.training.stages.split_backward import input_gradients, weight_gradients
from jellybean.training.stages.stage import StageSettings
from jellybean.training.stages.updates import UpdateSettings, WeightUpdates

nn = torch.nn
FLUSHES = UpdateSettings(flushes=True)


class Twice(nn.Module):
    """Uses a weight twice, both times on the path to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.beside = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.tanh(self.one(self.other(self.one(x)))) + self.beside.exp()


class Beside(nn.Module):
    """Also returns an output that depends on weights only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.layer = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) * 2, self.weight.sin()


SEQUENCE = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))


@pytest.mark.parametrize("module", [SEQUENCE, Twice(), Beside()], ids=["sequence", "twice", "beside"])
@pytest.mark.parametrize("wanted", [True, False], ids=["inputs", "no-inputs"])
def test_two_halves_are_the_whole(module, wanted):
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=wanted)
    weights = list(module.parameters())
    outputs = module(x)
    roots = outputs if isinstance(outputs, tuple) else (outputs,)
    coming = [torch.randn_like(root) for root in roots]
    inputs = [x] if wanted else []
    whole = torch.autograd.grad(roots, [*inputs, *weights], coming, retain_graph=True)
    first, deferred = input_gradients(roots, coming, inputs, weights)
    for weight in weights:
        weight.grad = None
    weight_gradients(deferred, weights)
    for found, expected in zip([*first, *(weight.grad for weight in weights)], whole, strict=True):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_second_half_does_not_run_the_first_again():
    """Gradients of activations are computed only once, which is the purpose of the split."""
    ran: list[str] = []

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            ran.append("activation")
            return gradient

    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    x = torch.randn(3, 4, requires_grad=True)
    output = second(Marked.apply(first(x)))
    weights = [*first.parameters(), *second.parameters()]
    _, deferred = input_gradients([output], [torch.ones_like(output)], [x], weights)
    assert ran == ["activation"]
    weight_gradients(deferred, weights)
    assert all(weight.grad is not None for weight in weights)
    assert ran == ["activation"]


def test_mixed_precision_keeps_weights_and_their_gradients():
    stage = StageCopy(nn.Linear(4, 4), StageSettings(precision=torch.bfloat16))
    stage.begin_iteration({0: 5})
    (output,) = stage.forward(0, (torch.randn(3, 4, requires_grad=True),), 0, seed=1)
    assert output.dtype is torch.bfloat16
    (gradient,) = stage.backward(0, (torch.ones_like(output),))
    assert gradient.dtype is torch.float32
    assert {value.dtype for value in stage.gradient.values()} == {torch.float32}


def test_a_version_stays_as_long_as_it_is_needed():
    stage = StageCopy(nn.Linear(1, 1, bias=False))
    stage.begin_iteration({0: 7, 1: 9})
    before = stage.versions.weights(0)["weight"]
    old = before.detach().clone()
    stage.versions.before_update(3)
    with torch.no_grad():
        stage.module.weight += 1.0
    assert torch.equal(before, old)
    assert torch.equal(stage.versions.weights(1)["weight"], old + 1.0)
    memory = stage.module.weight.data_ptr()
    stage.versions.before_update(8)  # version 0 is not needed any more, version 1 is
    assert stage.versions.peak == 2
    stage.versions.before_update(9)
    assert stage.module.weight.data_ptr() != memory


class Scaled(nn.Module):
    """Its forward computes with a buffer that it has changed, in place or by another."""

    def __init__(self, *, replaces: bool) -> None:
        super().__init__()
        self.replaces, self.layer = replaces, nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        if self.replaces:
            self.scale = self.scale * 1.5
        else:
            self.scale.mul_(1.5)
        return torch.tanh(self.layer(x)) * self.scale.clone()


@pytest.mark.parametrize("replaces", [False, True], ids=["in-place", "replaced"])
def test_a_repeated_forward_computes_with_the_buffers_of_the_first_one(replaces):
    torch.manual_seed(0)
    rows, gradients, state = torch.randn(2, 3, 4), [], torch.get_rng_state()
    for recompute in (False, True):
        torch.set_rng_state(state)
        module = Scaled(replaces=replaces)
        stage = StageCopy(module, StageSettings(recompute=recompute))
        stage.begin_iteration({0: 4})
        for number, x in enumerate(rows):  # both are in flight before the first backward
            stage.forward(number, (x,), 0, seed=number)
        for number in range(2):
            stage.backward(number, (torch.ones(3, 4),))
        gradients.append(stage.gradient["layer.weight"])
        assert float(module.scale) == 2.25
    assert torch.equal(*gradients)


class Later(nn.Module):
    """Writes into a buffer from its third forward on; another one stays."""

    def __init__(self, *, replaces: bool) -> None:
        super().__init__()
        self.replaces, self.layer = replaces, nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("mask", torch.ones(4))

    def forward(self, x):
        self.steps += 1
        if self.steps > 2:
            value = self.mean * 0.5 + x.detach().mean(0)
            if self.replaces:
                self.mean = value
            else:
                self.mean.copy_(value)
        return self.layer(x) * self.mask


@pytest.mark.parametrize("replaces", [False, True], ids=["in-place", "replaced"])
def test_a_buffer_that_is_written_late_is_in_checkpoints(replaces):
    stage, other = (StageCopy(Later(replaces=replaces), state=frozenset({"steps"})) for _ in range(2))
    updates = WeightUpdates(
        {(0, 0): stage}, lambda own: torch.optim.SGD(own.values(), 0.1), ProcessGroups({}, {}), FLUSHES
    )
    for number in range(3):
        stage.begin_iteration({0: 4})
        stage.forward(0, (torch.ones(3, 4),), 0, seed=number)
        buffers = {name for name in collect_state({(0, 0): stage}, updates) if name.startswith(BUFFER)}
        assert buffers == {"buffer/steps"} | ({"buffer/mean"} if number == 2 else set())
    tensors = {name: value.clone() for name, value in collect_state({(0, 0): stage}, updates).items()}
    mine = belongs_to({(0, 0): other}, {})
    again = WeightUpdates(
        {(0, 0): other}, lambda own: torch.optim.SGD(own.values(), 0.1), ProcessGroups({}, {}), FLUSHES
    )
    restore_state({name: value for name, value in tensors.items() if mine(name)}, {(0, 0): other}, again)
    assert torch.equal(other.module.mean, torch.ones(4))
    assert set(other.saved_buffers) == {"steps", "mean"}


@pytest.mark.parametrize("replaces", [False, True], ids=["in-place", "replaced"])
def test_an_evaluation_goes_on_with_buffers_that_it_changes(replaces):
    module, plain = Later(replaces=replaces), Later(replaces=replaces)
    names = {name: name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    stage = EvaluationStage(module, (0,), names)
    for number in range(5):
        x = torch.full((3, 4), float(number))
        stage.run((x,), tensors)
        plain.eval()(x)
    assert torch.equal(module.mean, plain.mean)
    assert torch.equal(tensors["mean"], plain.mean)
