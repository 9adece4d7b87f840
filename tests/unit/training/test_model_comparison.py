"""The first update of a run is compared with the plain module: what the stages compute otherwise is named.

Every case is one thing that a trace may drop. In a block that fits into a stage it is trained, as the stage calls the
block itself; where the cut lies beside it, in the same forward, it is refused.
"""

from __future__ import annotations

import itertools
import random

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch import nn
from torch.nn.utils import parametrizations, spectral_norm
from torch.utils.checkpoint import checkpoint

from jellybean.errors import JellyBeanError
from jellybean.pipeline.torch_trace import CallArguments
from jellybean.training.compared_runs import ComparedRows, ComparedStages
from jellybean.training.model_comparison import Comparison, compare_update
from jellybean.training.samples import Samples
from jellybean.training.stages.stage import StageSettings
from jellybean.training.stages.whole import whole_stage
from jellybean_solver.pipeline import make_schedule
from tests.support.comparison import compare

FLUSHED = StageSettings(keeps_versions=False)
BFLOAT16 = StageSettings(torch.bfloat16, keeps_versions=False)
WIDTH = 8


def _usual(part, x):
    return x + torch.tanh(part.layer(x))


class Block(nn.Module):
    """A residual block, which computes what a case says."""

    def __init__(self, compute=_usual, prepare=None):
        super().__init__()
        self.layer, self.compute = nn.Linear(WIDTH, WIDTH), compute
        if prepare is not None:
            prepare(self)

    def forward(self, x):
        return self.compute(self, x)


class Net(Block):
    """Computes what a case says in the forward that is cut."""

    def __init__(self, compute, prepare=None):
        super().__init__(compute, prepare)
        self.first, self.block, self.last = nn.Linear(4, WIDTH), Block(), nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.last(self.block(self.compute(self, self.first(x))))


def _chain(*parts):
    return nn.Sequential(nn.Linear(4, WIDTH), *parts, nn.Linear(WIDTH, 1))


def _compared(module, dtype=torch.float64, **settings):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(16, 4, generator=generator, dtype=dtype)
    targets = torch.randn(16, 1, generator=generator, dtype=dtype)
    before = inputs.clone()
    result = compare(module.to(dtype), [inputs], targets, **settings)
    assert torch.equal(inputs, before)
    return result


def _counter(part, x):
    part.calls += 1
    return _usual(part, x) / part.calls


def _with_counter(part):
    part.calls = 0


def _listed(part, x):
    part.log.append(len(part.log))
    return _usual(part, x) / len(part.log)


def _with_list(part):
    part.log = []


def _iterated(part, x):
    return _usual(part, x) / next(part.numbers)


def _with_iterator(part):
    part.numbers = itertools.count(1)


def _decided_by_value(part, x):
    return _usual(part, x) if x.mean() > 0 else x


def _decided_by_size(part, x):
    return _usual(part, x) * (0.5 if x.shape[0] >= 5 else 1.0)


def _drawn(part, x):
    return _usual(part, x) * random.random()


def _skipped_at_random(part, x):
    return _usual(part, x) if torch.rand(()).item() < 0.5 else x


def _gradient_halved(part, x):
    y = _usual(part, x)
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 0.5)
    return y


def _assigned(part, x):
    if part.training:
        part.mean = 0.9 * part.mean + 0.1 * x.detach().mean(0)
    return _usual(part, x) + part.mean


def _with_mean(part):
    part.register_buffer("mean", torch.zeros(WIDTH))


UNTRACEABLE = {
    "counter": (_counter, _with_counter),
    "list": (_listed, _with_list),
    "iterator": (_iterated, _with_iterator),
    "value": (_decided_by_value, None),
    "size": (_decided_by_size, None),
    "Python's generator": (_drawn, None),
    "layers skipped at random": (_skipped_at_random, None),
    "hook on an activation": (_gradient_halved, None),
    "assigned buffer": (_assigned, _with_mean),
}


@pytest.mark.parametrize("name", UNTRACEABLE)
def test_a_block_is_called_as_it_is(name):
    torch.manual_seed(0)
    parts = [Block(*UNTRACEABLE[name]) for _ in range(2)]
    assert _compared(_chain(Block(), *parts, Block())).difference == ""


@pytest.mark.parametrize(
    "name",
    [
        "counter",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("iterator", "hook on an activation", "size")),
    ],
)
def test_beside_a_cut_it_is_refused(name):
    torch.manual_seed(0)
    try:
        refused = _compared(Net(*UNTRACEABLE[name])).difference
    except JellyBeanError as error:
        refused = str(error)
    said = {"counter": "changes self.calls of Net", "iterator": "changes self.numbers of Net"}
    assert said.get(name, "differ") in refused


def _without_gradient(part, x):
    with torch.no_grad():
        scale = part.layer(x).std()
    return _usual(part, x) / (1.0 + scale)


def _in_full_precision(part, x):
    with torch.autocast("cpu", enabled=False):
        return x + torch.tanh(part.layer(x.float()))


def _kept_in_evaluation(part, x):
    if part.training or "weight" not in part.kept:
        part.kept["weight"] = part.layer.weight * 2
    return x + torch.tanh(nn.functional.linear(x, part.kept["weight"]))


def _with_kept(part):
    part.kept = {}


def _in_place(part, x):
    return x.mul_(2.0).add_(part.layer(x.clone()))


def _checkpointed(part, x):
    return x + checkpoint(part.layer, x, use_reentrant=True)


def _normed(part):
    part.layer = spectral_norm(part.layer)


def _parametrized(part):
    part.layer = parametrizations.orthogonal(part.layer)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("compute", "prepare", "settings", "dtype"),
    [
        (_without_gradient, None, FLUSHED, torch.float64),
        (_in_full_precision, None, BFLOAT16, torch.float32),
        (_kept_in_evaluation, _with_kept, FLUSHED, torch.float64),
        (_in_place, None, StageSettings(recompute=True, keeps_versions=False), torch.float64),
        (_checkpointed, None, FLUSHED, torch.float64),
        (_usual, _normed, FLUSHED, torch.float64),
        pytest.param(_usual, _parametrized, FLUSHED, torch.float64, marks=pytest.mark.slow),
    ],
)
def test_what_a_trace_could_lose_is_trained(compute, prepare, settings, dtype):
    torch.manual_seed(0)
    parts = [Block(compute, prepare) for _ in range(2)]
    assert _compared(_chain(Block(), *parts), dtype, settings=settings).difference == ""


@pytest.mark.parametrize(
    "register",
    [
        lambda part: part.register_full_backward_hook(lambda _, gradients, __: (gradients[0] * 0.5,)),
        lambda part: part.register_full_backward_pre_hook(lambda _, gradients: (gradients[0] * 0.5,)),
        lambda part: part.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 0.5,)),
        lambda part: part.register_forward_hook(lambda _, __, result: result * 0.5),
        lambda part: part.layer.weight.register_hook(lambda gradient: gradient * 0.5),
    ],
    ids=["backward", "backward pre", "forward pre", "forward", "weight"],
)
def test_hooks_run(register):
    torch.manual_seed(0)
    hooked = Block()
    register(hooked)
    assert _compared(_chain(Block(), hooked, Block())).difference == ""


def test_gradients_that_trials_left_are_no_difference(monkeypatch):
    def compared_with_gradients(module, stages, rows):
        for value in module.parameters():
            value.grad = torch.ones_like(value)
        return of_package(module, stages, rows)

    of_package = compare_update
    torch.manual_seed(0)
    module = _chain(Block(), Block())
    monkeypatch.setitem(_compared.__globals__, "compare_update", compared_with_gradients)
    assert _compared(module) == Comparison()
    assert all(value.grad is None for value in module.parameters())


@pytest.mark.parametrize(
    "settings", [{"settings": StageSettings()}, {"schedule": "zb-h1"}], ids=["weight versions", "split backward"]
)
def test_hooks_of_weights_run_in_every_schedule(settings):
    torch.manual_seed(0)
    module = _chain(Block(), Block())
    module[2].layer.weight.register_hook(lambda gradient: gradient * 0.5)
    assert _compared(module, **settings).difference == ""


@pytest.mark.parametrize(
    "settings",
    [FLUSHED, StageSettings(recompute=True, keeps_versions=False), StageSettings()],
    ids=["flush", "recompute", "weight versions"],
)
def test_dropout_and_statistics_are_the_same(settings):
    torch.manual_seed(0)
    parts = (nn.Dropout(0.3), Block(), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), Block())
    assert _compared(_chain(*parts), settings=settings).difference == ""


class Tuples(nn.Module):
    """Passes nested results between blocks that no tracer follows."""

    class Part(Block):
        def forward(self, x, *, scales):
            scale = scales["of all"] if x.mean() > 0 else 0.5 * scales["of all"]
            return super().forward(x) * scale, {"of all": scale * 0.9, "none": None}

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)
        self.parts = nn.ModuleList(self.Part() for _ in range(4))

    def forward(self, x):
        scales = {"of all": x.abs().mean(1, keepdim=True)}
        x = self.first(x)
        for part in self.parts:
            x, scales = part(x, scales={"of all": scales["of all"]})
        return self.last(x)


def test_nested_results_go_from_block_to_block():
    torch.manual_seed(0)
    assert _compared(Tuples(), stages=3).difference == ""


@pytest.mark.slow
def test_the_first_module_that_differs_is_named():
    torch.manual_seed(0)
    result = _compared(Net(*UNTRACEABLE["size"]))
    assert result.difference.startswith("in training mode, with a micro-batch of 8 rows, the loss differs by 0.")
    assert "first module that differs is block" in result.difference


def test_copies_that_count_by_themselves_are_refused():
    torch.manual_seed(0)
    counting = _chain(Block(_counter, _with_counter), Block(), Block())
    assert "would count its own micro-batches" in _compared(counting, copies=2).difference
    assert "no checkpoint has" in _compared(counting).note


def test_a_loss_is_not_called_on_rows_of_which_nothing_counts():
    inputs, targets, counts = torch.randn(16, 4), torch.ones(16, 1), torch.ones(16)
    targets[:8], counts[:8] = -1.0, 0.0

    def strict(outputs, wanted):
        assert (wanted > 0).any()
        return nn.functional.mse_loss(outputs, wanted)

    assert not compare(_chain(Block()), [inputs], targets, loss=strict, weights=counts).difference
    with pytest.raises(JellyBeanError, match="the model fails on a micro-batch of 8 rows"):
        compare(_chain(Block()), [inputs], targets, loss=strict)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_module_is_compared():
    module = torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double())
    arguments = CallArguments.of([torch.randn(8, 4, dtype=torch.float64)])
    rows = Samples(arguments, CallArguments.of([torch.randn(8, 1, dtype=torch.float64)]))
    training, evaluation = whole_stage(module, arguments.form, frozenset(dict(module.named_buffers())))
    nests = [cut.stages[0].module.nest for cut in (training, evaluation.stages)]
    order = make_schedule("1f1b", 1, 2)
    stages = ComparedStages(training, evaluation, tuple(nests), nn.functional.mse_loss, FLUSHED, order, None)
    assert compare_update(module, stages, ComparedRows((rows, rows), (rows,))) == Comparison()


def test_the_module_is_as_it_was():
    torch.manual_seed(0)
    module = _chain(Block(_counter, _with_counter), Block(_assigned, _with_mean), nn.BatchNorm1d(WIDTH)).double()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    generators = torch.get_rng_state(), random.getstate()
    _compared(module)
    assert module[1].calls == 0
    assert all(part.training for part in module.modules())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class Towers(nn.Module):
    """Two branches with dropout, of which the second is in the first stage: random numbers come in another order."""

    def __init__(self):
        super().__init__()
        self.late = nn.Sequential(nn.Linear(4, WIDTH), nn.Dropout(0.3), Block())
        self.early = nn.Sequential(nn.Linear(4, WIDTH), nn.Dropout(0.2), Block())
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x):
        late = self.late(x)
        return self.last(late * self.early(x))


def test_the_order_of_random_numbers_is_no_difference():
    torch.manual_seed(0)
    result = _compared(Towers(), stage_named=lambda name: int("early" not in name))
    assert (result.difference, result.note) == ("", "")


class Attending(nn.Module):
    """Counts in a buffer, so that its training is exported, and has a layer that evaluation need not export."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.calls += 1
        x = self.first(x)[:, None].repeat(1, 3, 1)
        return self.last(self.attention(x, x, x, need_weights=False)[0].mean(1))


@pytest.mark.slow
def test_evaluation_is_cut_where_training_is():
    torch.manual_seed(0)
    assert _compared(Attending()).difference == ""
