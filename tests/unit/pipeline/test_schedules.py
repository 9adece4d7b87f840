"""Every schedule against the figures of its paper: bubble, live activations, weight versions, update delays."""

from __future__ import annotations

from itertools import accumulate

import pytest

from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    SCHEDULES,
    ActionKind,
    Schedule,
    ScheduleCosts,
    bubble_fraction,
    make_schedule,
    schedule_memory,
    schedule_violations,
    simulate,
)
from jellybean_solver.pipeline.schedule.memory import DeviceMemory

GRID = [(devices, microbatches) for devices in (2, 3, 4, 6, 8) for microbatches in (1, 2, 4, 8, 12, 24, 48)]
TIMES = [(1.0, 1.0), (1.0, 2.0), (0.02, 0.05)]


def bubble(schedule: Schedule, forward_s: float, backward_s: float) -> float:
    return bubble_fraction(simulate(schedule, ScheduleCosts(forward_s, backward_s)))


def activations(schedule: Schedule) -> list[int]:
    return [device.peak_activations for device in schedule_memory(schedule)]


def versions(schedule: Schedule) -> list[tuple[int, int]]:
    return [(device.weight_versions, device.update_delay) for device in schedule_memory(schedule)]


@pytest.mark.parametrize(("devices", "microbatches"), GRID)
@pytest.mark.parametrize(("forward_s", "backward_s"), TIMES)
def test_idle_time_of_flushed_schedules(devices: int, microbatches: int, forward_s: float, backward_s: float) -> None:
    def idle(name: str, **more: int) -> float:
        return bubble(make_schedule(name, devices, microbatches, **more), forward_s, backward_s)

    one_chunk = (devices - 1) / (devices - 1 + microbatches)
    assert idle("naive") == pytest.approx((devices - 1) / devices)
    for name in ("gpipe", "1f1b", "dapple"):
        assert idle(name) == pytest.approx(one_chunk)
    if microbatches % devices == 0:
        for chunks in (1, 2, 3, 4):
            expected = (devices - 1) / (devices - 1 + chunks * microbatches)
            assert idle("interleaved", chunks=chunks) == pytest.approx(expected)


@pytest.mark.parametrize(("devices", "microbatches"), GRID)
def test_activations_of_flushed_schedules(devices: int, microbatches: int) -> None:
    def peaks(name: str, **more: int) -> list[int]:
        return activations(make_schedule(name, devices, microbatches, **more))

    assert peaks("naive") == [1] * devices
    assert peaks("gpipe") == [microbatches] * devices
    for name in ("1f1b", "dapple", "zb-h1"):
        assert peaks(name) == [min(devices - stage, microbatches) for stage in range(devices)]
    if microbatches % devices == 0:
        for chunks in (1, 2, 3):
            total = chunks * microbatches
            expected = [min(total, 2 * (devices - 1 - s) + (chunks - 1) * devices + 1) for s in range(devices)]
            assert peaks("interleaved", chunks=chunks) == expected


@pytest.mark.parametrize("devices", [2, 4, 6, 8, 12])
@pytest.mark.parametrize("units", [1, 2, 3, 5])
def test_chimera(devices: int, units: int) -> None:
    microbatches = units * devices
    equal = make_schedule("chimera", devices, microbatches, backward_ratio=1.0)
    assert bubble(equal, 1, 1) == pytest.approx((devices - 2) / (devices - 2 + 2 * microbatches))
    double = make_schedule("chimera", devices, microbatches)
    if units == 1:
        assert bubble(double, 1, 2) == pytest.approx((devices - 2) / (devices - 2 + 1.5 * microbatches))
    else:
        assert bubble(double, 1, 2) >= (devices - 2) / (devices - 2 + 1.5 * microbatches)
    for schedule in (equal, double):
        assert all(devices / 2 + 1 <= peak <= devices for peak in activations(schedule))


@pytest.mark.parametrize("devices", [2, 4, 8, 16])
@pytest.mark.parametrize("microbatches", [1, 3, 5, 9, 20, 33])
def test_chimera_of_units_that_are_not_whole(devices: int, microbatches: int) -> None:
    for ratio in (1.0, 2.0):
        schedule = make_schedule("chimera", devices, microbatches, backward_ratio=ratio)
        assert schedule_violations(schedule, max_activations=devices) == ()
        assert versions(schedule) == [(1, 0)] * devices
        assert microbatches < devices or min(activations(schedule)) >= devices / 2 + 1


@pytest.mark.parametrize(("devices", "microbatches", "idle"), [(4, 8, 0.172), (8, 32, 0.232)])
def test_chimera_of_several_units(devices: int, microbatches: int, idle: float) -> None:
    assert bubble(make_schedule("chimera", devices, microbatches), 1, 2) == pytest.approx(idle, abs=5e-4)


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_schedules_without_a_flush(devices: int) -> None:
    microbatches = 6 * devices
    stages = range(devices)
    for name in ("pipedream", "pipedream-vertical", "pipedream-2bw", "wpipe"):
        schedule = make_schedule(name, devices, microbatches)
        for forward_s, backward_s in TIMES:
            assert bubble(schedule, forward_s, backward_s) == pytest.approx(0.0, abs=1e-9)
    stashed, vertical, buffered = (
        make_schedule(name, devices, microbatches) for name in ("pipedream", "pipedream-vertical", "pipedream-2bw")
    )
    for schedule in (stashed, vertical, buffered):
        assert activations(schedule) == [devices - stage for stage in stages]
    assert versions(stashed) == [(devices - stage, devices - 1 - stage) for stage in stages]
    assert versions(vertical) == [(devices, devices - 1)] * devices
    assert versions(buffered) == [(2, 1)] * devices


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_wpipe_holds_two_versions_of_its_first_group_only(devices: int) -> None:
    found: tuple[DeviceMemory, ...] = schedule_memory(make_schedule("wpipe", devices, 6 * devices))
    assert [device.peak_activations for device in found] == [2 * devices - stage for stage in range(devices)]
    for device in found:
        near, far = device.stages
        assert (near.weight_versions, near.update_delay) == (2, 1)
        assert (far.weight_versions, far.update_delay) == (1, 0)


SPLIT_TIMES = [(1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (2.0, 3.0, 1.0), (1.0, 0.5, 1.5)]
SPLIT_GRID = [(devices, microbatches) for devices in (1, 2, 3, 5, 8, 16) for microbatches in (1, 4, 7, 16, 33)]


def kept(schedule: Schedule) -> int:
    """Activations between their forward and their weight gradient, at the worst device."""
    steps = {ActionKind.FORWARD: 1, ActionKind.WEIGHT_GRADIENT: -1}
    return max(max(accumulate(steps.get(action.kind, 0) for action in own)) for own in schedule.actions)


@pytest.mark.parametrize(("devices", "microbatches"), SPLIT_GRID)
@pytest.mark.parametrize("times", SPLIT_TIMES)
def test_zb_h1(devices: int, microbatches: int, times: tuple[float, float, float]) -> None:
    """The last device begins D - 1 forwards late, however long weight gradients are."""
    forward_s, input_s, weight_s = times
    schedule = make_schedule("zb-h1", devices, microbatches)
    timeline = simulate(schedule, ScheduleCosts(forward_s, input_s=input_s, weight_s=weight_s))
    idle = timeline.makespan_s - microbatches * sum(times)
    least = (devices - 1) * max(forward_s, forward_s + input_s - weight_s)
    assert idle == pytest.approx(least) if microbatches >= devices else idle > least
    assert kept(schedule) == min(devices, microbatches)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "microbatches"), SPLIT_GRID)
@pytest.mark.parametrize("times", SPLIT_TIMES)
def test_zb_v(devices: int, microbatches: int, times: tuple[float, float, float]) -> None:
    forward_s, input_s, weight_s = times
    schedule = make_schedule("zb-v", devices, microbatches)
    timeline = simulate(schedule, ScheduleCosts(forward_s / 2, input_s=input_s / 2, weight_s=weight_s / 2))
    plain = simulate(
        make_schedule("zb-h1", devices, microbatches), ScheduleCosts(forward_s, input_s=input_s, weight_s=weight_s)
    )
    assert kept(schedule) == 2 * min(devices, microbatches)
    if forward_s == input_s == weight_s:
        assert timeline.makespan_s <= plain.makespan_s + 1e-9
        if microbatches >= 2 * devices - 1:  # nobody waits between its first and its last pass
            assert timeline.makespan_s == pytest.approx(3 * microbatches + (devices - 1) / 2)
            for starts, ends in zip(timeline.starts_s, timeline.ends_s, strict=True):
                assert ends[-1] - starts[0] == pytest.approx(3 * microbatches)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 4, 8, 13])
def test_zb_v_of_few_microbatches_waits_no_longer_than_its_greedy_order(devices: int) -> None:
    """The published order alone takes 8 D - 2 slots for D micro-batches."""

    def slots(microbatches: int) -> float:
        return simulate(
            make_schedule("zb-v", devices, microbatches), ScheduleCosts(1, input_s=1, weight_s=1)
        ).makespan_s

    assert slots(devices) == pytest.approx(7 * devices - 1)
    for microbatches in range(1, devices // 2 + 1):  # down the V and back, and two slots for each that follows
        assert slots(microbatches) == pytest.approx(4 * devices + 2 * microbatches - 1)
    times = [slots(microbatches) for microbatches in range(1, 2 * devices)]
    assert times == sorted(times)


def test_grouped_gpipe_fills_with_the_second_group() -> None:
    assert bubble(make_schedule("gpipe-grouped", 4, 8), 1, 2) == pytest.approx(3 / (3 + 16))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 8, 21, 24])
def test_every_schedule_keeps_every_rule_or_is_refused(name: str, devices: int, microbatches: int) -> None:
    try:
        schedule = make_schedule(name, devices, microbatches)
    except SolverError as error:
        assert name in str(error)
        return
    assert schedule_violations(schedule) == ()
    assert schedule.devices == devices


@pytest.mark.parametrize(
    ("name", "devices", "microbatches", "chunks", "told"),
    [
        ("chimera", 3, 6, None, "even number of devices, not 3"),
        ("interleaved", 4, 6, None, "4 devices divide, not 6"),
        ("wpipe", 4, 6, None, "every 4 micro-batches, which must divide 6"),
        ("pipedream-2bw", 4, 6, None, "must divide 6"),
        ("gpipe-grouped", 4, 3, None, "at least 4 micro-batches"),
        ("1f1b", 4, 8, 2, "1f1b has 1 stages per device, not 2"),
        ("1f1b", 0, 8, None, "at least 1 device"),
        ("1f1b", 4, 0, None, "at least 1 micro-batch"),
        ("other", 4, 8, None, "there are naive, gpipe"),
    ],
)
def test_sizes_that_no_paper_allows(name: str, devices: int, microbatches: int, chunks: int | None, told: str) -> None:
    with pytest.raises(SolverError, match=told):
        make_schedule(name, devices, microbatches, chunks)


def test_dapple_warms_up_longer_where_communication_is_long() -> None:
    from jellybean_solver.pipeline.schedules.synchronous import dapple

    costs = ScheduleCosts(1.0, 2.0, transfer_s=1.5)
    early, longer = (simulate(dapple(4, 16, policy), costs) for policy in ("a", "b"))
    assert longer.makespan_s < early.makespan_s
    assert activations(longer.schedule) == [7, 5, 3, 1]
    with pytest.raises(SolverError, match="policies a and b"):
        dapple(4, 8, "c")
