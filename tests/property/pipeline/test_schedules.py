"""Random sizes and times: schedules keep their rules, the simulator equals a slow one, changes are found out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.schedule import Schedule, parse_actions
from jellybean_solver.pipeline.schedule.simulator import ScheduleCosts, simulate
from jellybean_solver.pipeline.schedule.validate import schedule_violations
from jellybean_solver.pipeline.schedules import SCHEDULES, make_schedule

Key = tuple[ActionKind, int, int, int]  # kind, stage, micro-batch, pipe


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    devices = draw(st.integers(1, 6))
    if name == "chimera":
        devices *= 2
    rounds = draw(st.integers(1, 4))
    anywhere = name not in ("interleaved", "wpipe", "pipedream-2bw", "gpipe-grouped")
    microbatches = draw(st.integers(1, 14)) if anywhere else rounds * devices
    chunks = draw(st.integers(1, 3)) if name == "interleaved" else None
    return make_schedule(name, devices, microbatches, chunks)


def inputs(schedule: Schedule, action: Action, keys: list[Key]) -> list[Key]:
    """What an action needs, from the definition of forward and backward."""
    kind, stage, own = action.kind, action.stage, (action.microbatch, action.pipe)
    match kind:
        case ActionKind.FORWARD:
            return [(kind, stage - 1, *own)] if stage else []
        case ActionKind.WEIGHT_GRADIENT:
            return [(ActionKind.INPUT_GRADIENT, stage, *own)]
        case ActionKind.UPDATE:
            return [key for key in keys if key[0] is ActionKind.REDUCE and key[1] == stage]
        case ActionKind.REDUCE:
            return []
    after = [(kind, stage + 1, *own)] if stage + 1 < schedule.stages else []
    return [(ActionKind.FORWARD, stage, *own), *after]


def slow_ends(schedule: Schedule, costs: ScheduleCosts) -> list[list[float]]:
    """Ends by going over all actions until nothing changes: straight from the definition."""
    ends = [[0.0] * len(actions) for actions in schedule.actions]
    at = {
        (action.kind, action.stage, action.microbatch, action.pipe): (device, index)
        for device, actions in enumerate(schedule.actions)
        for index, action in enumerate(actions)
    }

    changed = True
    while changed:
        changed = False
        for device, actions in enumerate(schedule.actions):
            for index, action in enumerate(actions):
                start = ends[device][index - 1] if index else 0.0
                for key in inputs(schedule, action, list(at)):
                    there, place = at[key]
                    crosses = there != device and action.kind is not ActionKind.UPDATE
                    first = min(key[1], action.stage)
                    start = max(start, ends[there][place] + (costs.transfer_s[first] if crosses else 0.0))
                slow = costs.slowness[device] if costs.slowness else 1.0
                end = start + slow * costs.computing_s(action.kind, action.stage)
                if abs(end - ends[device][index]) > 1e-12:
                    ends[device][index] = end
                    changed = True
    return ends


@settings(max_examples=150)
@given(schedules(), st.randoms(use_true_random=False))
def test_the_simulator_equals_the_definition(schedule: Schedule, rng: random.Random) -> None:
    def times() -> tuple[float, ...]:
        return tuple(rng.choice((0.5, 1.0, 2.25)) for _ in range(schedule.stages))

    slowness = tuple(rng.choice((1.0, 1.5)) for _ in range(schedule.devices))
    costs = ScheduleCosts(times(), times(), times(), times(), times(), reduce_s=0.25, update_s=0.5, slowness=slowness)
    timeline = simulate(schedule, costs)
    for own, expected in zip(timeline.ends_s, slow_ends(schedule, costs), strict=True):
        assert own == pytest.approx(expected)


@settings(max_examples=150)
@given(schedules())
def test_rules_hold_and_text_round_trips(schedule: Schedule) -> None:
    assert schedule_violations(schedule) == ()
    assert parse_actions(schedule.to_text()) == schedule.actions


@settings(max_examples=300)
@given(schedules(), st.randoms(use_true_random=False))
def test_a_changed_schedule_is_reported(schedule: Schedule, rng: random.Random) -> None:
    """One action left out, done twice, on another device, of another micro-batch, or with other weights."""
    device = rng.randrange(schedule.devices)
    own = list(schedule.actions[device])
    index = rng.randrange(len(own))
    action = own[index]
    match rng.randrange(5):
        case 0:
            if action.kind is ActionKind.REDUCE:
                return
            del own[index]
        case 1:
            own.insert(index, action)
        case 2:
            own[index] = replace(action, microbatch=action.microbatch + 1)
        case 3:
            own[index] = replace(action, version=action.version + 1)
        case _:
            own[index] = replace(action, stage=(action.stage + 1) % (schedule.stages + 1))
    if action.kind is ActionKind.REDUCE:
        return  # what a sum counts follows from its place alone
    changed = replace(schedule, actions=(*schedule.actions[:device], tuple(own), *schedule.actions[device + 1 :]))
    assert schedule_violations(changed)


@settings(max_examples=150)
@given(schedules(), st.randoms(use_true_random=False))
def test_a_shuffled_order_deadlocks_or_keeps_the_definition(schedule: Schedule, rng: random.Random) -> None:
    orders = [list(actions) for actions in schedule.actions]
    rng.shuffle(orders[rng.randrange(len(orders))])
    changed = replace(schedule, actions=tuple(map(tuple, orders)))
    try:
        timeline = simulate(changed)
    except SolverError as error:
        assert "deadlocks" in str(error)
        return
    costs = replace(ScheduleCosts(), transfer_s=(0.0,) * schedule.stages)
    for own, expected in zip(timeline.ends_s, slow_ends(changed, costs), strict=True):
        assert own == pytest.approx(expected)
