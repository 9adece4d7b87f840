"""A request that is too late takes no run and leaves nothing behind; time comes in with events."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from jellybean_agent import BatchPolicy, Brain, EdgeMessage, Instruction, OperatorWiring, RunOperator, SendMessage
from jellybean_agent.brain.messages import RequestExpired

WIRING = {
    "see": OperatorWiring((("camera", "each"),), (("join", "each"),)),
    "join": OperatorWiring((("see", "each"), ("phone", "each")), ()),
}
HERE = dict.fromkeys(WIRING, "a-1")


class Whole:
    """An output without rows of interest."""

    def rows(self, downstream: str) -> int:
        return 1

    def take(self, downstream: str, row: int | None) -> object:
        return "out"


def make(batch: int = 1) -> Brain:
    return Brain("a-1", WIRING, [HERE, {**HERE, "join": "b-1"}], BatchPolicy({"see": batch, "join": batch}))


def camera(request: str, until: float, route: int = 1) -> EdgeMessage:
    return EdgeMessage(request, route, "camera", "see", (), "picture", until)


def runs(instructions: Sequence[Instruction]) -> list[str]:
    return [item.request for run in instructions if isinstance(run, RunOperator) for item in run.items]


def late(instructions: Sequence[Instruction]) -> list[tuple[str, str]]:
    return [(e.request, e.operator) for e in instructions if isinstance(e, RequestExpired)]


def test_what_is_too_late_takes_no_run() -> None:
    brain = make(batch=4)
    assert runs(brain.received(camera("a", 10.0), 0.0)) == ["a"]
    for request, until in (("b", 5.0), ("c", 10.0), ("d", 5.0), ("e", 9.0)):
        assert not brain.received(camera(request, until), 0.0)
    out = brain.completed(0, [Whole()], 5.0)
    assert late(out) == [("b", "see"), ("d", "see")]
    assert runs(out) == ["c", "e"]
    assert [i.message.until for i in out if isinstance(i, SendMessage)] == [10.0]  # the deadline goes on with the data
    assert (brain.queued, brain.requests_in_flight) == (0, 2)


def test_what_comes_too_late_takes_no_run_either_and_is_not_taken_up_again() -> None:
    brain = make()
    assert late(brain.received(camera("a", 1.0), 1.0)) == [("a", "see")]
    assert not brain.received(camera("a", 9.0), 2.0)
    assert brain.requests_in_flight == 0


def test_what_waits_for_inputs_goes_with_its_deadline() -> None:
    brain = make()
    brain.received(EdgeMessage("a", 0, "phone", "join", (), "sound", 3.0), 0.0)
    brain.received(EdgeMessage("b", 0, "phone", "join", (), "sound", 4.0), 0.0)
    assert not brain.expire(2.9)
    assert late(brain.expire(3.0)) == [("a", "")]
    assert brain.requests_in_flight == 1
    assert late(brain.expire(4.0)) == [("b", "")]
    assert brain.requests_in_flight == 0


def test_a_run_under_way_ends_and_leads_nowhere() -> None:
    brain = make()
    brain.received(camera("a", 1.0), 0.0)
    assert late(brain.expire(2.0)) == [("a", "")]
    assert not brain.completed(0, [Whole()], 2.0)


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_in_any_order_nothing_late_runs_nothing_in_time_is_dropped_and_nothing_stays(seed: int, batch: int) -> None:
    rng = random.Random(seed)
    brain, now, running = make(batch), 0.0, None
    until = {f"r{i}": rng.uniform(0.0, 10.0) for i in range(8)}
    messages = [
        EdgeMessage(request, 0, *edge, (), "data", at)
        for request, at in until.items()
        for edge in (("camera", "see"), ("phone", "join"))
    ]
    rng.shuffle(messages)
    answered, dropped = set(), set()
    while messages or running is not None:
        now += rng.choice([0.0, 0.1, 1.0])
        what = rng.random()
        if what < 0.2:
            out = brain.expire(now)
        elif running is not None and (what < 0.6 or not messages):
            run, running = running, None
            out = brain.completed(run.run, [Whole()] * len(run.items), now)
        elif messages:
            out = brain.received(messages.pop(), now)
        for instruction in out:
            if isinstance(instruction, RunOperator):
                running = instruction
                assert all(until[item.request] > now for item in instruction.items)
            elif isinstance(instruction, RequestExpired):
                assert until[instruction.request] <= now
                dropped.add(instruction.request)
            elif isinstance(instruction, SendMessage):
                answered.add(instruction.message.request)
    brain.expire(11.0 + now)
    assert (brain.queued, brain.requests_in_flight) == (0, 0)
    assert answered | dropped <= until.keys()
