"""Modules as people write them are traced: their graph computes their results and gradients, or a message says why."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest

from tests.support.skips import NotInstalled

torch = pytest.importorskip("torch", reason=NotInstalled.TORCH)

from jellybean.errors import JellyBeanError
from jellybean.pipeline import CallArguments, TracedModule, trace
from jellybean.pipeline.torch_trace import check_trace

nn = torch.nn


class Reversed(torch.autograd.Function):
    """The identity, whose gradient changes its sign: torch.export would trace through it and lose that."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


@dataclass
class Cache:
    """A part of a result that is no tensor."""

    length: int


class Optional(nn.Module):
    """Optional arguments, a mask that is None by default, and a nested result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, mask=None, scale=1.0, *, shift=None):
        y = self.layer(x) * scale
        if mask is not None:
            y = y.masked_fill(~mask, 0.0)
        if shift is not None:
            y = y + shift
        return {"scores": y, "parts": (y.sum(1), None), "cache": Cache(len(x)), "kind": "made"}


class Counting(nn.Module):
    """Writes into a buffer, and nothing reads what the operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls.add_(1)
        return self.layer(x)


class Assigning(Counting):
    """Assigns the counted value anew, which torch.fx does not record."""

    def forward(self, x):
        self.calls = self.calls + 1
        return self.layer(x)


class Adversarial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.other(Reversed.apply(self.one(x)))


class FixedSize(nn.Module):
    """Reads the batch size as a number: torch.fx fails, and torch.export's graph holds for other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) * float(len(x) > 0)


class OnlyThisSize(nn.Module):
    """Its result depends on the batch size, so that a trace holds for one size only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        size = int(x.shape[0]) if isinstance(x, torch.Tensor) else 1
        return self.layer(x) * (2.0 if size == 3 else 1.0)


class DataDependent(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


def _traced(module: nn.Module, *args: object, **kwargs: object) -> tuple[TracedModule, CallArguments]:
    torch.manual_seed(0)
    arguments = CallArguments.of(args, kwargs)
    return trace(module, arguments), arguments


MASK = torch.tensor([[True, False, True, True]] * 3)


@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [
        ((), {}, ("input_0",)),
        ((MASK,), {}, ("input_0", "input_1")),
        ((), {"mask": MASK, "scale": 2.0}, ("input_0", "mask")),
        ((None, 0.5), {"shift": torch.ones(3, 4)}, ("input_0", "shift")),
    ],
)
def test_optional_arguments(args, kwargs, names):
    module, x = Optional(), torch.randn(3, 4)
    traced, arguments = _traced(module, x, *args, **kwargs)
    assert arguments.names == names
    found = traced.result.nest(traced.graph(*arguments.tensors))
    expected = module(x, *args, **kwargs)
    assert torch.equal(found["scores"], expected["scores"])
    assert torch.equal(found["parts"][0], expected["parts"][0])
    assert found["parts"][1] is None
    assert found["cache"] is None  # what is no tensor does not cross stages
    assert found["kind"] == "made"


def test_the_graph_shares_the_modules_weights():
    module = Optional()
    traced, _ = _traced(module, torch.randn(3, 4))
    assert dict(traced.graph.named_parameters()).keys() == dict(module.named_parameters()).keys()
    assert traced.graph.get_parameter("layer.weight") is module.layer.weight


def test_a_gradient_of_ones_own_is_kept():
    module = Adversarial()
    traced, arguments = _traced(module, torch.randn(3, 4))
    assert traced.tracer == "torch.fx"
    exported = trace(module, arguments, tracer="torch.export")
    assert "gradients differ" in check_trace(module, exported, arguments)


def test_tracing_changes_no_buffer():
    module = Counting()
    traced, arguments = _traced(module, torch.randn(3, 4))
    assert int(module.calls) == 0
    traced.graph(*arguments.tensors)
    assert int(module.calls) == 1


class Remembering(nn.Module):
    """Its first call sets a flag, a hook or an item. `follows`: whether torch.export can follow the rest."""

    def __init__(self, what: str, *, follows: bool) -> None:
        super().__init__()
        self.what, self.follows, self.layer, self.items = what, follows, nn.Linear(4, 4), {}

    def forward(self, x):
        if self.what == "flag":
            self.ready = True
        elif self.what == "hook":
            self.layer.register_forward_hook(lambda *_: None)
        else:
            self.items["size"] = 4
        return self.layer(x) if self.follows or x.sum() > 0 else x


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("what", ["flag", "hook", "item"])
def test_exporting_leaves_no_trace(what, follows):
    module = Remembering(what, follows=follows)
    with contextlib.nullcontext() if follows else pytest.raises(JellyBeanError, match="data-dependent"):
        trace(module, CallArguments.of([torch.randn(3, 4)]), tracers=("torch.export",), check=False)
    assert not (hasattr(module, "ready") or module.layer._forward_hooks or module.items)


def test_another_batch_size():
    module = FixedSize()
    traced, _ = _traced(module, torch.randn(3, 4))
    assert traced.tracer == "torch.export"
    x = torch.randn(7, 4)
    assert torch.equal(traced.graph(x)[0], module(x))


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Assigning(), r"forward of Assigning changes self.calls[^$]*buffers differ"),
        (DataDependent(), r"test_torch_trace.py:\d+: if x.sum\(\) > 0"),
        (OnlyThisSize(), "with a batch of 2"),
    ],
)
def test_the_message_says_why(module, told, capsys):
    with pytest.raises(JellyBeanError, match=r"neither torch\.fx nor") as raised:
        _traced(module, torch.randn(3, 4))
    assert raised.match(told)
    assert len(str(raised.value).splitlines()) == 3
    assert capsys.readouterr() == ("", "")  # torch.export prints its graph


class Made(nn.Module):
    """Calls modules without weights that are no submodules: a loss, an activation in a list, several in one."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.layer, self.acts = way, nn.Linear(4, 4), [nn.GELU()]

    def forward(self, x, targets):
        scores = self.layer(x)
        if self.way == "loss":
            return nn.CrossEntropyLoss(label_smoothing=0.1)(scores, targets)
        if self.way == "list":
            return self.acts[0](scores)
        return nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Softmax(dim=1))(scores)


@pytest.mark.parametrize("way", ["loss", "list", "several"])
def test_a_module_that_is_no_submodule(way):
    module, inputs = Made(way), (torch.randn(3, 4), torch.tensor([1, 0, 3]))
    traced, arguments = _traced(module, *inputs)
    assert (traced.tracer, traced.called.names) == ("torch.fx", frozenset())
    assert torch.equal(traced.graph(*arguments.tensors)[0], module(*inputs))


class Owed(nn.Module):
    """Keeps a layer with weights where no optimizer finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = [nn.Linear(4, 4)], nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.layers[0](x))


def test_a_module_with_weights_that_is_no_submodule_is_named():
    with pytest.raises(JellyBeanError, match="module is not installed as a submodule"):
        trace(Owed(), CallArguments.of([torch.randn(3, 4)]), tracers=("torch.fx",))


def test_names_of_nested_arguments():
    arguments = CallArguments.of([(torch.ones(2), {"a": torch.ones(2)})], {"more": [torch.ones(2)], "flag": True})
    assert arguments.names == ("input_0_0", "input_0_1_a", "more_0")
    args, kwargs = arguments.form.nest([1, 2, 3])
    assert (args, kwargs) == (((1, {"a": 2}),), {"more": [3], "flag": True})


@pytest.mark.parametrize(
    ("module", "tracer"), [(nn.Linear(4, 2), "torch.fx"), (nn.LSTM(4, 2, batch_first=True), "torch.export")]
)
def test_a_model_that_is_a_single_layer_keeps_its_names(module, tracer):
    x = torch.randn(3, 5, 4) if isinstance(module, nn.LSTM) else torch.randn(3, 4)
    traced, _ = _traced(module, x)
    assert traced.tracer == tracer
    assert {name for name, _ in traced.graph.named_parameters()} == {name for name, _ in module.named_parameters()}


class Heads(nn.Module):
    """A layer of any name. `decides`: forward depends on values, so that it is called as it is."""

    def __init__(self, name: str, *, decides: bool) -> None:
        super().__init__()
        self.heads, self.name, self.decides = nn.ModuleDict({name: nn.Linear(4, 4)}), name, decides

    def forward(self, x):
        y = self.heads[self.name](x)
        return 2 * y if self.decides and y.sum() > 0 else y


@pytest.mark.parametrize("name", ["class", "in", "lambda"])
def test_a_name_that_the_code_of_a_graph_cannot_have_is_told_where_the_graph_needs_it(name):
    for decides in (False, True):
        module = nn.Sequential(nn.Linear(4, 4), Heads(name, decides=decides), nn.Linear(4, 2))
        if decides:
            assert [operation.name for operation in _traced(module, torch.randn(3, 4))[0].graph.graph.nodes]
            continue
        with pytest.raises(
            JellyBeanError, match=f"cannot have a submodule of the name '{name}'.*rename 1.heads.{name}"
        ):
            trace(module, CallArguments.of([torch.randn(3, 4)]))


@pytest.mark.parametrize("name", ["graph", "code", "meta"])
def test_a_name_of_the_graph_itself_is_told(name):
    module = nn.Sequential()
    module.add_module(name, nn.Linear(4, 4))
    with pytest.raises(JellyBeanError, match=f"cannot have a submodule of the name '{name}'"):
        trace(module, CallArguments.of([torch.randn(3, 4)]))
