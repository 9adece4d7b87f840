"""The simulator on cases computed by hand: unequal stages, slow devices, transfers, deadlock."""

from __future__ import annotations

import pytest

from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    Action,
    ActionKind,
    Schedule,
    ScheduleCosts,
    bubble_fraction,
    bubble_over_ideal,
    make_schedule,
    simulate,
)
from jellybean_solver.pipeline.schedule.actions import parse_action
from jellybean_solver.pipeline.schedule.schedule import WeightPolicy, parse_actions, round_robin_stages


def of_text(text: str, stages: int) -> Schedule:
    actions = parse_actions(text)
    microbatches = 1 + max(action.microbatch for own in actions for action in own)
    return Schedule(
        "given",
        WeightPolicy.FLUSHED,
        microbatches,
        microbatches,
        round_robin_stages(stages),
        (0,) * microbatches,
        actions,
    )


def test_two_unequal_stages() -> None:
    schedule = of_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1", 2)
    timeline = simulate(schedule, ScheduleCosts(forward_s=(1.0, 2.0), backward_s=(2.0, 3.0)))
    assert [(s.start_s, s.end_s) for s in timeline.timed_actions(0)] == [(0, 1), (1, 2), (6, 8), (11, 13)]
    assert [(s.start_s, s.end_s) for s in timeline.timed_actions(1)] == [(1, 3), (3, 6), (6, 8), (8, 11)]
    assert bubble_fraction(timeline) == pytest.approx(1 - (6 + 10) / 26)


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 1), (4, 8), (8, 32)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_both_published_forms_of_the_bubble(name: str, devices: int, microbatches: int) -> None:
    timeline = simulate(make_schedule(name, devices, microbatches))
    assert bubble_fraction(timeline) == pytest.approx((devices - 1) / (devices - 1 + microbatches))
    assert bubble_over_ideal(timeline) == pytest.approx((devices - 1) / microbatches)


def test_a_bubble_without_computation_is_infinite() -> None:
    sending = simulate(make_schedule("gpipe", 2, 1), ScheduleCosts(0.0, 0.0, transfer_s=1.0))
    assert bubble_over_ideal(sending) == float("inf")
    assert bubble_over_ideal(simulate(make_schedule("wpipe", 4, 64))) == 0


def test_a_crossing_delays_or_occupies() -> None:
    schedule = of_text("0F0 0B0\n1F0 1B0", 2)
    assert simulate(schedule, ScheduleCosts(1, 2, transfer_s=0.5)).makespan_s == 1 + 0.5 + 1 + 2 + 0.5 + 2
    two = of_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1", 2)
    hidden = simulate(two, ScheduleCosts(1, 2, transfer_s=1.0))
    assert hidden.starts_s[0][1] == 1  # the second forward runs while the first one's output is sent
    busy = simulate(two, ScheduleCosts(1, 2, transfer_s=1.0, overlap=False))
    assert busy.starts_s[0][1] == 2
    assert busy.makespan_s > hidden.makespan_s


def test_a_slow_device() -> None:
    timeline = simulate(make_schedule("gpipe", 2, 4), ScheduleCosts(1, 1, slowness=(1.0, 3.0)))
    assert timeline.makespan_s == 1 + 4 * 3 + 4 * 3 + 1
    assert timeline.busy_s(1) == 24


def test_stages_on_one_device_need_no_crossing() -> None:
    assert simulate(make_schedule("interleaved", 1, 4, 3), ScheduleCosts(1, 2, transfer_s=9)).makespan_s == 3 * 4 * 3


def test_copies_update_together() -> None:
    timeline = simulate(make_schedule("chimera", 2, 2), ScheduleCosts(1, 2, reduce_s=5.0, update_s=1.0))
    assert timeline.makespan_s == 6 + 2 * 5 + 2 * 1


def test_a_standstill_names_who_waits() -> None:
    with pytest.raises(SolverError, match=r"2 of 2 devices wait; device 0 waits in 0B1 for 0F1"):
        simulate(of_text("0F0 0B1 0F1 0B0\n1F0 1F1 1B1 1B0", 2))


@pytest.mark.parametrize("text", ["2F5", "0B12", "3I4@7", "11W0~1", "2U7@3~1", "0R7"])
def test_text_of_an_action(text: str) -> None:
    assert str(parse_action(text)) == text
    assert parse_action("2F5@3") == Action(ActionKind.FORWARD, 2, 5, 3)


@pytest.mark.parametrize("text", ["", "F5", "2F", "2X5", "2F5@", "2F5~", "-1F5", "2F5 "])
def test_text_that_is_no_action(text: str) -> None:
    with pytest.raises(SolverError, match="is no action"):
        parse_action(text)
