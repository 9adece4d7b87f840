"""Every schedule trains correctly: synchronous ones equal one device, asynchronous ones their update rule."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.checkpoints.checkpoint import finish_checkpoint, rank_file, write_rank_file
from jellybean.training.checkpoints.position import Position
from jellybean_solver.pipeline import SCHEDULES, ActionKind, Schedule, schedule_memory
from tests.integration.training.cases import GoOn, Pause, Train, merged
from tests.integration.training.ranks import run_ranks
from tests.integration.training.reference import in_sequence, one_device, relative_error
from tests.integration.training.sleeping import Sleeping

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
EXACT = 1e-5
ASYNCHRONOUS = ("pipedream", "pipedream-vertical", "pipedream-2bw", "wpipe")
SYNCHRONOUS = tuple(name for name in SCHEDULES if name not in ASYNCHRONOUS)
UNEVEN = [[[3, 1, 4, 2]], [[2, 2, 1, 5]]]  # two iterations of different batch sizes
UPDATES = 50


def _asynchronous(name: str, devices: int, **more: object) -> Train:
    """Fifty updates in one iteration."""
    period = 1 if name.startswith("pipedream") and name != "pipedream-2bw" else devices
    return Train(name, devices, [[[1 + m % 3 for m in range(UPDATES * period)]]], tied=False, **more)


SYNC = {
    (name, devices): Train(name, devices, UNEVEN, chunks=2 if name == "interleaved" and devices == 4 else None)
    for name in SYNCHRONOUS
    for devices in (2, 4)
}
ASYNC = {(name, devices): _asynchronous(name, devices) for name in ASYNCHRONOUS for devices in (2, 4)}
MORE = {
    "replicas": Train("1f1b", 2, [[[3, 1, 4, 2], [1, 2, 2, 6]]]),
    "replicas-chimera": Train("chimera", 2, [[[3, 1, 4, 2], [1, 2, 2, 6]]]),
    "clip": Train("zb-v", 4, UNEVEN, clip=0.5),
    "clip-replicas": Train("chimera", 2, [[[3, 1, 4, 2], [1, 2, 2, 6]]], clip=0.5),
    "recompute": Train("1f1b", 4, UNEVEN, recompute=True),
    "recompute-split": Train("zb-h1", 2, UNEVEN, recompute=True),
    "norm-recompute": Train("1f1b", 2, [[[3, 2, 4, 2]], [[2, 2, 3, 5]]], norm=True, recompute=True),
    "others-on-meta": Train("chimera", 4, UNEVEN, tied=False, others_on_meta=True),
    "others-on-meta-split": Train("zb-v", 4, UNEVEN, tied=False, clip=0.5, others_on_meta=True),
    "others-on-meta-recompute": Train("interleaved", 2, UNEVEN, tied=False, recompute=True, others_on_meta=True),
    "device-links": Train("zb-v", 4, UNEVEN, links="device"),
    "device-links-replicas": Train("chimera", 2, [[[3, 1, 4, 2], [1, 2, 2, 6]]], links="device"),
    "staged-links": Train("interleaved", 2, UNEVEN, links="staged"),
    "one": Train("1f1b", 1, UNEVEN),
    "few": Train("1f1b", 4, [[[5, 2]]]),
    "adam": Train("zb-v", 2, UNEVEN, optimizer=torch.optim.AdamW, options={"lr": 0.01}),
}
NORM = {name: Train(name, 4, [[[3, 2, 4, 2]], [[2, 2, 3, 5]]], norm=True) for name in SYNCHRONOUS}
ASYNC_MORE = {
    "replicas": Train("pipedream-2bw", 2, [[[1, 2] * 10, [2, 2] * 10]], tied=False),
    "adam": Train("wpipe", 2, [[[1, 2] * 10]], tied=False, optimizer=torch.optim.Adam, options={"lr": 0.01}),
    "recompute": Train("pipedream", 4, [[[1, 2] * 10]], tied=False, recompute=True),
}
DROPOUT = {recompute: Train("1f1b", 2, UNEVEN, dropout=0.4, recompute=recompute) for recompute in (False, True)}
LIVE = {(name, devices): Sleeping(name, devices, 8, rounds=0, scale=0.0) for devices in (2, 4) for name in SCHEDULES}
COMPRESSED = Train("1f1b", 4, [UNEVEN[0]], compress="bfloat16")


def _checkpoints(folder: Path) -> dict[str, GoOn]:
    """Two checkpoints in every rank's folder; rank 2 cannot read the newer one, or no rank has any."""
    torn, whole = folder / "torn", folder / "whole"
    for place in (each / str(rank) for each in (torn, whole) for rank in range(4)):
        for epochs in (1, 2):
            finish_checkpoint(
                place, Position(epochs), {0: write_rank_file(place, Position(epochs), 0, {"w": torch.zeros(3)})}, {}, 2
            )
    (torn / "2" / "epoch-2" / rank_file(0)).write_bytes(b"torn")
    return {name: GoOn(str(folder / name)) for name in ("torn", "whole", "none")}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of all cases, run by one start of four ranks."""
    checkpoints = _checkpoints(tmp_path_factory.mktemp("checkpoints"))
    groups = [
        SYNC,
        ASYNC,
        MORE,
        ASYNC_MORE,
        DROPOUT,
        {"compressed": COMPRESSED},
        checkpoints,
        {"pause": Pause()},
        LIVE,
        NORM,
    ]
    cases = [case for group in groups for case in group.values()]
    results = iter(run_ranks(4, cases))
    return [{key: next(results) for key in group} for group in groups]


def _start(train: Train) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in train.chain().named_parameters(remove_duplicate=False)}


def _equals_one_device(train: Train, results) -> None:
    expected, start = one_device(train), _start(train)
    for iteration, weights in enumerate(expected):
        got = merged(results, iteration)
        assert set(got) >= set(dict(train.chain().named_parameters()))
        assert relative_error(got, weights, start) <= EXACT, iteration
        if iteration == 0 and train.optimizer is torch.optim.SGD:  # one plain step: the gradient itself
            assert relative_error(got, weights, start) <= 1e-9
    assert all(own["left"] == 0 for own in results if own)


@pytest.mark.parametrize("case", SYNC, ids=str)
def test_synchronous_equals_one_device(found, case):
    _equals_one_device(SYNC[case], found[0][case])


@pytest.mark.parametrize("case", MORE)
def test_with_more_equals_one_device(found, case):
    _equals_one_device(MORE[case], found[2][case])


@pytest.mark.parametrize("name", NORM)
def test_batch_norm_equals_one_device(found, name):
    """One device sees the same micro-batches. Running statistics agree too if a stage has a single copy."""
    _equals_one_device(NORM[name], found[9][name])
    expected = one_device(NORM[name])[-1]
    for own in found[9][name] if name != "chimera" else ():
        for buffer, value in own["buffers"].items():
            assert torch.allclose(value, expected[buffer], rtol=EXACT), buffer


def _rule(name: str, devices: int):
    """The weight versions behind an update's gradients, from the papers (not from the schedule itself)."""
    return {
        "pipedream": lambda stage, m: max(0, m - (devices - 1 - stage)),
        "pipedream-vertical": lambda stage, m: max(0, m - (devices - 1)),
        "pipedream-2bw": lambda stage, m: max(0, m // devices - 1),
        "wpipe": lambda stage, m: m // devices if stage >= devices else max(0, m // devices - 1),
    }[name]


def _equals_rule(train: Train, results) -> None:
    schedule = train.schedule
    expected = in_sequence(train, schedule.period, schedule.stages, _rule(train.name, train.devices))
    assert relative_error(merged(results), expected, _start(train)) <= EXACT


@pytest.mark.parametrize("case", ASYNC, ids=str)
def test_asynchronous_equals_its_rule_in_sequence(found, case):
    """Fifty updates, float64."""
    train, results = ASYNC[case], found[1][case]
    _equals_rule(train, results)
    for device, own in enumerate(schedule_memory(train.schedule)):
        for stage in own.stages:
            assert results[device]["versions"][stage.stage, stage.pipe] == stage.weight_versions


def _most_kept(schedule: Schedule, device: int) -> int:
    """Peak number of stages between a forward and the last gradient that needs its activations."""
    kept = most = 0
    for action in schedule.actions[device]:
        kept += (action.kind is ActionKind.FORWARD) - (action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT))
        most = max(most, kept)
    return most


@pytest.mark.parametrize("case", LIVE, ids=str)
def test_live_activations_are_the_simulators(found, case):
    """Counted by hooks on saved tensors; without deferred weight gradients, also equal to the planner's figure."""
    schedule = LIVE[case].schedule
    for device, own in enumerate(schedule_memory(schedule)):
        live = found[8][case][device].live
        assert live == _most_kept(schedule, device)
        assert own.peak_deferred or live == own.peak_activations


@pytest.mark.parametrize("case", ASYNC_MORE)
def test_asynchronous_with_more_equals_its_rule(found, case):
    _equals_rule(ASYNC_MORE[case], found[3][case])


def test_the_rules_differ():
    """Guards the tests above: none passes for the wrong rule."""
    train = _asynchronous("pipedream", 4)
    rules = [_rule(name, 4) for name in ("pipedream", "pipedream-vertical", "pipedream-2bw")]
    ends = [in_sequence(train, 1, 4, rule) for rule in rules]
    assert relative_error(ends[0], ends[1], _start(train)) > 100 * EXACT
    assert relative_error(ends[0], ends[2], _start(train)) > 100 * EXACT


def test_recomputation_draws_the_same_dropout(found):
    plain, again = merged(found[4][False]), merged(found[4][True])
    assert relative_error(again, plain, _start(DROPOUT[False])) <= EXACT
    assert relative_error(plain, one_device(SYNC["1f1b", 2])[-1], _start(DROPOUT[False])) > 0.01  # some was dropped


def test_compressed_traffic_is_near(found):
    error = relative_error(merged(found[5]["compressed"]), one_device(COMPRESSED)[0], _start(COMPRESSED))
    assert 1e-6 < error < 0.05


def test_all_ranks_go_on_from_the_same_checkpoint(found):
    """No rank resumes from an older epoch than the others: all end and name the rank that cannot read it."""
    assert found[6]["whole"] == [2] * 4
    assert found[6]["none"] == [0] * 4
    assert len(set(found[6]["torn"])) == 1
    assert "rank 2 does not have the checkpoint that rank 0 resumes from" in found[6]["torn"][0]


def test_a_pause_longer_than_the_timeout_harms_nobody(found):
    """Only waiting for another rank counts towards the timeout, not idle time."""
    assert "a rank waited 0.1 s for the others" in found[7]["pause"][0]
    for told in found[7]["pause"][:2]:
        assert "another rank sent nothing for 0.1 s; if it is busy, raise `timeout`" in told
