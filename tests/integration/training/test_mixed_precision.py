"""Mixed precision in every kind of schedule equals plain torch: master weights, and loss scaling as by GradScaler."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

import torch.distributed as dist

from jellybean.training import StageCopy, UpdateSettings, WeightUpdates, make_process_groups
from jellybean.training.stages.loss_scale import LossScale
from jellybean_solver.pipeline import Action, ActionKind, make_schedule
from tests.integration.training.cases import Train, merged
from tests.integration.training.nets import loss
from tests.integration.training.ranks import run_ranks
from tests.integration.training.reference import relative_error

torch.set_num_threads(1)
HALF, SHORT = torch.float16, torch.bfloat16
NEAR = 2e-3  # relative; sums of gradients differ in their order
UPDATES = 8
SIZES = [[[3, 1, 4, 2]]] * UPDATES
SCALED = {"precision": HALF, "single": True, "loss_scale": LossScale(2.0**20, interval=2)}
ROUNDED = {"precision": SHORT, "single": True, "short": SHORT}
FLOAT16 = {
    "1f1b": Train("1f1b", 2, SIZES, tied=False, **SCALED),
    "zb-v": Train("zb-v", 4, SIZES, **SCALED),
    "chimera": Train("chimera", 4, SIZES, tied=False, clip=0.5, **SCALED),
    "replicas": Train("gpipe", 2, [[[3, 1], [4, 2]]] * UPDATES, tied=False, **SCALED),
    "one": Train("1f1b", 1, SIZES, **SCALED),
}
MASTERS = {
    "1f1b": Train("1f1b", 2, SIZES, tied=False, **ROUNDED),
    "zb-v": Train("zb-v", 2, SIZES, **ROUNDED),  # the tied weight is in two stages of one rank
    "zb-h1": Train("zb-h1", 4, SIZES, clip=0.5, **ROUNDED),
    "recompute": Train("interleaved", 2, SIZES, tied=False, recompute=True, **ROUNDED),
}
STALE = Train("pipedream", 4, [[[2] * 20]], tied=False, **ROUNDED)


@dataclass(frozen=True)
class OneOverflow:
    """Two ranks with a stage each; the gradient of rank 1 overflowed. Returns (weight, scale) after two updates."""

    def __call__(self, rank: int) -> list[tuple[float, float]]:
        schedule = make_schedule("gpipe", 2, 2)
        groups = make_process_groups(schedule, 1, {})
        if rank > 1:
            return []
        stage = StageCopy(torch.nn.Linear(1, 1, bias=False))
        with torch.no_grad():
            stage.module.weight.fill_(1.0)
        settings = UpdateSettings(flushes=True, loss_scale=LossScale(8.0))
        held = {(rank, 0): stage}
        updates = WeightUpdates(held, lambda own: torch.optim.SGD(own.values(), lr=0.5), groups, settings)
        found = []
        for gradient in (float("inf") if rank else 8.0, 8.0):
            stage.begin_iteration({})
            updates.begin_iteration(())
            stage.gradient = {"weight": torch.full((1, 1), gradient)}
            updates.update(Action(ActionKind.UPDATE, rank, 1, 1), stage, 0)
            found.append((float(stage.module.weight.detach()), updates.loss_factor))
        return found


@pytest.fixture(scope="module")
def found():
    cases: dict[Any, Any] = {("float16", name): case for name, case in FLOAT16.items()}
    cases |= {("masters", name): case for name, case in MASTERS.items()}
    cases |= {"stale": STALE, "overflow": OneOverflow()}
    return dict(zip(cases, run_ranks(4, list(cases.values())), strict=True))


def _weights(chain) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in chain.named_parameters(remove_duplicate=False)}


def _micro_batches(train: Train, iteration: int):
    every = [batch for own in train.data(iteration) for batch in own]
    return [(x, y, len(x) / sum(len(one) for one, _ in every)) for x, y in every]


def _with_grad_scaler(train: Train) -> tuple[list[dict[str, torch.Tensor]], list[float]]:
    """The weights and the scale after each update: torch's autocast and GradScaler on one device."""
    chain = train.chain()
    optimizer = train.optimizer(chain.parameters(), **train.options)
    scaler = torch.amp.GradScaler("cpu", init_scale=train.loss_scale.scale, growth_interval=2)
    weights, scales = [], []
    for iteration in range(UPDATES):
        optimizer.zero_grad()
        for x, y, share in _micro_batches(train, iteration):
            with torch.autocast("cpu", HALF):
                own = loss(chain(x), y)
            scaler.scale(own * share).backward()
        scaler.unscale_(optimizer)
        if train.clip is not None:
            torch.nn.utils.clip_grad_norm_(chain.parameters(), train.clip)
        scaler.step(optimizer)
        scaler.update()
        weights.append(_weights(chain))
        scales.append(scaler.get_scale())
    return weights, scales


@pytest.mark.parametrize("name", FLOAT16)
def test_float16_skips_and_scales_as_grad_scaler_does(found, name):
    train, results = FLOAT16[name], found["float16", name]
    weights, scales = _with_grad_scaler(train)
    assert all(own["scales"] == scales for own in results if own)
    assert scales[0] < train.loss_scale.scale  # the first update overflows
    assert any(after > before for before, after in pairwise(scales))
    start = _weights(train.chain())
    assert all(torch.equal(value, start[name]) for name, value in merged(results, 0).items())
    assert relative_error(merged(results), weights[-1], start) <= NEAR


def test_an_overflow_on_one_rank_skips_the_update_on_all(found):
    assert found["overflow"][:2] == [[(1.0, 4.0), (0.0, 4.0)]] * 2  # the second gradient is 8 / 4, the rate 0.5


def _with_masters(train: Train) -> list[dict[str, torch.Tensor]]:
    """The master weights after each update on one device: matrices rounded, autocast, float32 sums of gradients."""
    chain = train.chain()
    masters = [value.detach().clone().requires_grad_() for value in chain.parameters()]
    optimizer = train.optimizer(masters, **train.options)
    found = []
    for iteration in range(UPDATES):
        for value, master in zip(chain.parameters(), masters, strict=True):
            value.data = master.detach().to(SHORT if value.dim() > 1 else torch.float32)
            master.grad = torch.zeros_like(master)
        for x, y, share in _micro_batches(train, iteration):
            with torch.autocast("cpu", SHORT):
                own = loss(chain(x), y)
            for master, gradient in zip(
                masters, torch.autograd.grad(own * share, list(chain.parameters())), strict=True
            ):
                master.grad += gradient.float()
        if train.clip is not None:
            torch.nn.utils.clip_grad_norm_(masters, train.clip)
        optimizer.step()
        names = {id(value): master for value, master in zip(chain.parameters(), masters, strict=True)}
        every = chain.named_parameters(remove_duplicate=False)
        found.append({name: names[id(value)].detach().clone() for name, value in every})
    return found


@pytest.mark.parametrize("name", MASTERS)
def test_short_weights_follow_their_masters(found, name):
    train, results = MASTERS[name], found["masters", name]
    types = {name: kind for own in results if own for name, kind in own["types"].items()}
    assert {kind for name, kind in types.items() if name.endswith("weight")} == {SHORT}
    assert {kind for name, kind in types.items() if name.endswith("bias")} == {torch.float32}
    got = merged(results)
    assert {value.dtype for value in got.values()} == {torch.float32}
    assert relative_error(got, _with_masters(train)[-1], _weights(train.chain())) <= 1e-2  # of bfloat16's 8 bits


def test_stale_versions_are_short_too(found):
    """Asynchronous updates with short weights stay near those in float64."""
    start = _weights(STALE.chain())
    got = merged(found["stale"])
    assert all(float((got[name] - start[name]).norm()) > 0 for name in got)
    assert max(own["versions"][stage] for own in found["stale"] for stage in own["versions"]) == 4
    assert {kind for own in found["stale"] for kind in own["types"].values()} == {SHORT, torch.float32}


def test_all_ranks_of_a_group_took_part(found):
    """Guards the tests above: no rank was left out."""
    assert [len(own) for own in found["overflow"]] == [2, 2, 0, 0]
    assert not dist.is_initialized()
