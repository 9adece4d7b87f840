"""Random sizes and times: schedules keep their rules, the simulator equals a slow one, changes are found out."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    REPLICATED_SCHEDULES,
    SCHEDULES,
    Action,
    ActionKind,
    Schedule,
    ScheduleCosts,
    StageGraph,
    branch_schedule,
    bubble_fraction,
    make_schedule,
    replicated_schedule,
    schedule_memory,
    schedule_violations,
    simulate,
)
from jellybean_solver.pipeline.schedule.schedule import parse_actions
from tests.support.examples import examples

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


@st.composite
def replicated_schedules(draw: st.DrawFn) -> tuple[Schedule, list[int]]:
    """A schedule of stages with unlike replica counts on devices in any order, and these counts."""
    replicas = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4) | st.just([13, 2, 1]))
    name, rounds = draw(st.sampled_from(REPLICATED_SCHEDULES)), draw(st.integers(1, 4))
    microbatches = rounds * math.lcm(*replicas) if name == "pipedream" else draw(st.integers(1, 20))
    devices = iter(draw(st.permutations(range(sum(replicas)))))
    placement = [[next(devices) for _ in range(count)] for count in replicas]
    return replicated_schedule(name, replicas, microbatches, placement), replicas


def any_schedule() -> st.SearchStrategy[Schedule]:
    return schedules() | replicated_schedules().map(lambda made: made[0]) | branch_schedules()


@st.composite
def branch_schedules(draw: st.DrawFn) -> Schedule:
    """A random graph of stages on random devices."""
    count = draw(st.integers(1, 6))
    places = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    known = sorted(set(places))
    pairs = [(one, other) for other in range(count) for one in range(other)]
    edges = tuple(pair for pair in pairs if draw(st.booleans()))
    seconds = tuple(draw(st.sampled_from((0.5, 1.0, 2.25))) for _ in range(count))
    graph = StageGraph(tuple(map(known.index, places)), edges, seconds, seconds)
    return branch_schedule(graph, draw(st.integers(1, 6)))


def inputs(schedule: Schedule, action: Action, keys: list[Key]) -> list[Key]:
    """What an action needs, from the definition of forward and backward."""
    kind, stage, own = action.kind, action.stage, (action.microbatch, action.pipe)
    match kind:
        case ActionKind.FORWARD:
            return [(kind, other, *own) for other in schedule.producers(stage)]
        case ActionKind.WEIGHT_GRADIENT:
            return [(ActionKind.INPUT_GRADIENT, stage, *own)]
        case ActionKind.UPDATE:
            return [key for key in keys if key[:3] == (ActionKind.REDUCE, stage, action.microbatch)]
        case ActionKind.REDUCE:
            return []
    return [(ActionKind.FORWARD, stage, *own), *((kind, other, *own) for other in schedule.consumers(stage))]


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
                    edge = (min(key[1], action.stage), max(key[1], action.stage))
                    transfer_s = costs.transfer_s[schedule.sends.index(edge)] if crosses else 0.0
                    start = max(start, ends[there][place] + transfer_s)
                slow = costs.slowness[device] if costs.slowness else 1.0
                end = start + slow * costs.computing_s(action.kind, action.stage)
                if abs(end - ends[device][index]) > 1e-12:
                    ends[device][index] = end
                    changed = True
    return ends


@settings(max_examples=examples(150))
@given(any_schedule(), st.randoms(use_true_random=False))
def test_the_simulator_equals_the_definition(schedule: Schedule, rng: random.Random) -> None:
    def times() -> tuple[float, ...]:
        return tuple(rng.choice((0.5, 1.0, 2.25)) for _ in range(max(schedule.stages, len(schedule.sends))))

    slowness = tuple(rng.choice((1.0, 1.5)) for _ in range(schedule.devices))
    costs = ScheduleCosts(times(), times(), times(), times(), times(), reduce_s=0.25, update_s=0.5, slowness=slowness)
    timeline = simulate(schedule, costs)
    for own, expected in zip(timeline.ends_s, slow_ends(schedule, costs), strict=True):
        assert own == pytest.approx(expected)


@settings(max_examples=examples(150))
@given(any_schedule())
def test_rules_hold_and_text_round_trips(schedule: Schedule) -> None:
    assert schedule_violations(schedule) == ()
    assert parse_actions(schedule.to_text()) == schedule.actions


@settings(max_examples=examples(150))
@given(replicated_schedules())
def test_micro_batches_go_round_robin_over_replicas(made: tuple[Schedule, list[int]]) -> None:
    """A replica has every r-th micro-batch, forward and backward; at the first stage at most NOAM are in flight."""
    schedule, replicas = made
    for actions, memory in zip(schedule.actions, schedule_memory(schedule), strict=True):
        assert len(memory.stages) == 1
        stage = memory.stages[0].stage
        numbers = {action.microbatch for action in actions if action.kind is ActionKind.FORWARD}
        assert len({number % replicas[stage] for number in numbers}) <= 1
        in_flight = math.ceil(sum(replicas[stage:]) / replicas[stage])
        assert memory.peak_activations == min(in_flight, len(numbers))
        if not schedule.flushes:
            updates = [action.microbatch for action in actions if action.kind is ActionKind.UPDATE]
            rounds = math.lcm(*replicas)
            assert updates == list(range(rounds - 1, schedule.microbatches, rounds))


@pytest.mark.parametrize("name", REPLICATED_SCHEDULES)
@pytest.mark.parametrize("devices", [1, 2, 5])
def test_one_replica_each_is_the_plain_schedule(name: str, devices: int) -> None:
    assert replicated_schedule(name, [1] * devices, 12) == make_schedule(name, devices, 12)


@pytest.mark.parametrize("replicas", [(2, 1), (3, 1), (2, 2), (4, 1)])
def test_balanced_replicas_without_a_flush_do_not_idle(replicas: tuple[int, ...]) -> None:
    """Stages whose replicas are as many times slower: PipeDream's steady state has no bubble."""
    schedule = replicated_schedule("pipedream", replicas, 8 * math.lcm(*replicas))
    costs = ScheduleCosts(tuple(map(float, replicas)), tuple(2.0 * count for count in replicas))
    assert bubble_fraction(simulate(schedule, costs)) == pytest.approx(0.0, abs=1e-9)


def test_parallel_branches_run_at_the_same_time() -> None:
    """A stem, two branches and a join, on two devices: of 1, 4, 4 and 1 s forward, and as much backward."""
    graph = StageGraph((0, 0, 1, 0), ((0, 1), (0, 2), (1, 3), (2, 3)), (1.0, 4.0, 4.0, 1.0), (1.0, 4.0, 4.0, 1.0))
    costs = ScheduleCosts(graph.forward_s, graph.backward_s)
    assert simulate(branch_schedule(graph, 1), costs).makespan_s == pytest.approx(12.0)  # 20 in a chain
    assert simulate(branch_schedule(graph, 8), costs).makespan_s == pytest.approx(8 * 12.0, rel=0.05)
    with pytest.raises(SolverError, match="from a stage to one with a higher number"):
        branch_schedule(replace(graph, edges=((1, 0),)), 1)


def test_replicas_that_cannot_be_scheduled() -> None:
    with pytest.raises(SolverError, match="zb-v has one replica of each stage"):
        replicated_schedule("zb-v", [2, 1], 4)
    with pytest.raises(SolverError, match="updates every 6 micro-batches, which must divide 8"):
        replicated_schedule("pipedream", [3, 2], 8)
    with pytest.raises(SolverError, match="one device each, and the devices are"):
        replicated_schedule("1f1b", [2, 1], 4, [[0, 1], [1]])


@settings(max_examples=examples(300))
@given(any_schedule(), st.randoms(use_true_random=False))
def test_a_changed_schedule_is_reported(schedule: Schedule, rng: random.Random) -> None:
    """One action left out, done twice, on another device, of another micro-batch, or with other weights."""
    device = rng.randrange(schedule.devices)
    own = list(schedule.actions[device])
    # What a sum counts follows from its place alone.
    places = [place for place, action in enumerate(own) if action.kind is not ActionKind.REDUCE]
    assume(places)
    index = rng.choice(places)
    action = own[index]
    match rng.randrange(5):
        case 0:
            del own[index]
        case 1:
            own.insert(index, action)
        case 2:
            own[index] = replace(action, microbatch=action.microbatch + 1)
        case 3:
            own[index] = replace(action, version=action.version + 1)
        case _:
            own[index] = replace(action, stage=(action.stage + 1) % (schedule.stages + 1))
    changed = replace(schedule, actions=(*schedule.actions[:device], tuple(own), *schedule.actions[device + 1 :]))
    assert schedule_violations(changed)


@settings(max_examples=examples(150))
@given(any_schedule(), st.randoms(use_true_random=False))
def test_a_shuffled_order_deadlocks_or_keeps_the_definition(schedule: Schedule, rng: random.Random) -> None:
    orders = [list(actions) for actions in schedule.actions]
    rng.shuffle(orders[rng.randrange(len(orders))])
    changed = replace(schedule, actions=tuple(map(tuple, orders)))
    try:
        timeline = simulate(changed)
    except SolverError as error:
        assert "deadlocks" in str(error)
        return
    costs = replace(ScheduleCosts(), transfer_s=(0.0,) * len(schedule.sends))
    for own, expected in zip(timeline.ends_s, slow_ends(changed, costs), strict=True):
        assert own == pytest.approx(expected)
