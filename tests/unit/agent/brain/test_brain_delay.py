"""A brain whose operators may wait for more requests to share a run: when it does, and for how long."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from jellybean_agent import BatchPolicy, Brain, EdgeMessage, OperatorWiring, RunOperator
from jellybean_agent.brain.messages import WakeAt

WIRING = {
    "see": OperatorWiring((("camera", "each"),), ()),
    "hear": OperatorWiring((("phone", "each"),), ()),
}
UPSTREAM = {"see": "camera", "hear": "phone"}


class Whole:
    def rows(self, downstream: str) -> int:
        return 1

    def take(self, downstream: str, row: int | None) -> object:
        return "out"


def make(delays: Mapping[str, float], batch: int = 3) -> Brain:
    routes = [dict.fromkeys(WIRING, "a-1")]
    return Brain("a-1", WIRING, routes, BatchPolicy(dict.fromkeys(WIRING, batch), delays))


def offer(brain: Brain, request: str, now: float, operator: str = "see", until: float = 1e9) -> list:
    return list(brain.received(EdgeMessage(request, 0, UPSTREAM[operator], operator, (), request, until), now))


def told(instructions: list) -> list:
    return [
        [item.request for item in one.items] if isinstance(one, RunOperator) else one.until
        for one in instructions
        if isinstance(one, RunOperator | WakeAt)
    ]


def test_the_first_waits_as_long_as_it_may_and_takes_what_came() -> None:
    brain = make({"see": 0.5})
    assert told(offer(brain, "a", 1.0)) == [1.5]
    assert told(offer(brain, "b", 1.2)) == []  # whoever waits for 1.5 does already
    assert told(list(brain.due(1.5))) == [["a", "b"]]
    assert told(list(brain.due(1.6))) == []


def test_a_full_batch_waits_for_nothing() -> None:
    brain = make({"see": 0.5})
    offer(brain, "a", 1.0)
    offer(brain, "b", 1.0)
    assert told(offer(brain, "c", 1.1)) == [["a", "b", "c"]]


def test_other_operators_go_first_meanwhile_and_what_became_due_comes_next() -> None:
    brain = make({"see": 0.5})
    offer(brain, "a", 1.0)
    (run,) = offer(brain, "x", 1.1, "hear")
    assert told([run]) == [["x"]]
    assert told(list(brain.due(1.5))) == []  # the worker is busy
    assert told(list(brain.completed(run.run, [Whole()], 1.8))) == [["a"]]


def test_what_is_given_up_is_not_waited_for() -> None:
    brain = make({"see": 0.5})
    offer(brain, "a", 1.0)
    offer(brain, "b", 1.3)
    brain.forget("a")
    assert told(list(brain.due(1.5))) == [1.8]
    assert told(list(brain.due(1.8))) == [["b"]]


def test_a_batch_that_failed_runs_again_at_once_one_by_one() -> None:
    brain = make({"see": 0.5}, batch=2)
    offer(brain, "a", 1.0)
    (run,) = offer(brain, "b", 1.1)
    (again,) = brain.failed(run.run, "it broke", 1.2)
    assert told([again]) == [["a"]]
    assert told(list(brain.completed(again.run, [Whole()], 1.3))) == [["b"]]


def test_too_late_while_it_waits() -> None:
    brain = make({"see": 0.5})
    offer(brain, "a", 1.0, until=1.2)
    offer(brain, "b", 1.1)
    found = list(brain.due(1.5))
    assert [one.request for one in found if one.kind == "expired"] == ["a"]
    assert told(found) == [1.6]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["see", "hear"])), min_size=1, max_size=20),
    st.sampled_from([{"see": 5.0}, {"see": 3.0, "hear": 8.0}]),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_nothing_waits_longer_than_it_may_while_the_worker_is_idle(
    arrivals: list[tuple[int, str]], delays: dict[str, float], batch: int, run_s: int
) -> None:
    """Whatever comes when: every request runs once, and waits beyond its delay only for runs of others."""
    brain = make(delays, batch)
    events: list[tuple[float, int, str, object]] = [
        (float(at), number, "arrive", operator) for number, (at, operator) in enumerate(arrivals)
    ]
    heapq.heapify(events)
    busy: list[tuple[float, float]] = []
    began: dict[str, float] = {}
    for count in range(10_000):
        if not events:
            break
        now, number, what, about = heapq.heappop(events)
        if what == "arrive":
            found = offer(brain, str(number), now, str(about))
        elif what == "done":
            found = list(brain.completed(about.run, [Whole()] * len(about.items), now))
        else:
            found = list(brain.due(now))
        for one in found:
            if isinstance(one, RunOperator):
                assert len(one.items) <= batch
                busy.append((now, now + run_s))
                began |= {item.request: now for item in one.items}
                heapq.heappush(events, (now + run_s, 1000 + count, "done", one))
            elif isinstance(one, WakeAt):
                assert one.until > now
                heapq.heappush(events, (one.until, 1000 + count, "due", None))
    assert not brain.queued
    assert began.keys() == set(map(str, range(len(arrivals))))
    for number, (at, operator) in enumerate(arrivals):
        waited = began[str(number)] - at
        occupied = sum(max(0.0, min(end, began[str(number)]) - max(begin, at)) for begin, end in busy)
        assert waited <= delays.get(operator, 0.0) + occupied
