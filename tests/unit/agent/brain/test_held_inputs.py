"""Bytes and requests that others make a worker keep: who sends most gives some up first, and all is given back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jellybean_agent import Brain, EdgeMessage, Instruction, OperatorWiring, RunOperator
from jellybean_agent.brain.brain import MemoryLimits
from jellybean_agent.brain.messages import RequestFailed
from jellybean_agent.brain.run_queue import BatchPolicy

WIRING = {
    "single": OperatorWiring((("source", "each"),), ()),
    "join": OperatorWiring((("left", "each"), ("right", "each")), ()),
    "gather": OperatorWiring((("part", "gather"),), ()),
}
OUT = type("Out", (), {"rows": lambda self, _: 1, "take": lambda self, *_: "out"})()


def make(**limits: int) -> Brain:
    policy = BatchPolicy({"single": 2, "join": 2})
    return Brain("a-1", WIRING, [dict.fromkeys(WIRING, "a-1")], policy, MemoryLimits(**limits))


def send(brain: Brain, sender: str, request: str, upstream: str, size: int = 1) -> Sequence[Instruction]:
    downstream = {"source": "single", "part": "gather"}.get(upstream, "join")
    path = ((0, 2),) if upstream == "part" else ()
    return brain.received(EdgeMessage(request, 0, upstream, downstream, path, "x"), claim=(sender, size))


def send_child(brain: Brain, sender: str, request: str, index: int, size: int) -> None:
    """One of three children that are gathered."""
    message = EdgeMessage(request, 0, "part", "gather", ((index, 3),), "x")
    assert not failed(brain.received(message, claim=(sender, size)))


def failed(instructions: Sequence[Instruction]) -> list[str]:
    assert all(one.overloaded for one in instructions if isinstance(one, RequestFailed))
    return [one.request for one in instructions if isinstance(one, RequestFailed)]


def test_made_up_requests_end_before_those_of_others() -> None:
    brain = make(input_bytes=100)
    send(brain, "honest", "h1", "left", 20)
    for number in range(4):
        assert not failed(send(brain, "box", f"b{number}", "right", 20))
    assert failed(send(brain, "box", "b4", "right", 20)) == ["b0"]
    assert failed(send(brain, "honest", "h2", "left", 30)) == ["b1", "b2"]
    (run,) = send(brain, "honest", "h1", "right", 10)
    assert isinstance(run, RunOperator)
    assert [item.request for item in run.items] == ["h1"]
    assert brain.held_bytes == 100
    brain.completed(run.run, [OUT])
    assert brain.held_bytes == 70


def test_a_sender_gives_up_what_it_has_sent_for_the_requests_of_others() -> None:
    brain = make(input_bytes=100)
    for number in range(3):
        send_child(brain, "honest", f"g{number}", 0, 2)
        send_child(brain, "hog", f"g{number}", 1, 30)
    assert failed(send(brain, "honest", "n1", "left", 10)) == ["g0"]
    assert failed(send(brain, "third", "n2", "left", 20)) == []
    assert failed(send(brain, "third", "n3", "left", 20)) == ["g1"]
    assert brain.held_bytes == 82


def test_of_the_requests_of_one_sender_the_largest_fail_first() -> None:
    brain = make(input_bytes=100)
    for number in range(10):
        send_child(brain, "hog", f"h{number}", 1, 1)
        send_child(brain, "honest", f"h{number}", 0, 3)
    send_child(brain, "hog", "large", 0, 25)
    send_child(brain, "hog", "large", 2, 25)
    assert failed(send(brain, "third", "n1", "left", 20)) == ["large"]
    assert brain.held_bytes == 60


def test_the_next_to_fail_is_of_whoever_holds_most_by_then() -> None:
    """Also where a request has ended, or was completed, since all were looked at."""
    brain = make(input_bytes=100)
    for number in range(5):
        send(brain, "one", f"o{number}", "left", 11)
        send(brain, "other", f"p{number}", "left", 9)
    assert failed(send(brain, "third", "n0", "left", 1)) == ["o0"]
    brain.forget("o1")
    assert failed(send(brain, "third", "n1", "left", 24)) == ["p0"]
    assert failed(send(brain, "third", "n2", "left", 20)) == ["p1", "o2"]
    assert brain.held_bytes == 94


def test_where_nothing_waits_for_others_the_newcomer_fails() -> None:
    brain = make(input_bytes=100)
    for number in range(5):  # the first one runs
        assert not failed(send(brain, "honest", f"h{number}", "source", 20))
    assert failed(send(brain, "box", "b0", "right", 20)) == ["b0"]
    assert failed(send(brain, "honest", "h5", "source", 20)) == ["h5"]
    assert brain.held_bytes == 100


def test_too_many_requests_are_those_of_the_sender_that_has_most() -> None:
    brain = make(requests=10)
    for number in range(3):
        send(brain, "honest", f"h{number}", "left")
    ended = [name for number in range(60) for name in failed(send(brain, "box", f"b{number}", "right"))]
    assert ended == [f"b{number}" for number in range(53)]
    assert brain.requests_in_flight == 10


@pytest.mark.parametrize("end", ["completed", "failed", "forgotten", "expired", "again"])
def test_what_is_not_kept_any_more_does_not_count(end: str) -> None:
    brain = make(input_bytes=1000)
    out = [
        *send(brain, "a", "r1", "source", 10),
        *send(brain, "a", "r2", "left", 10),
        *send(brain, "b", "r3", "source"),
    ]
    (run,) = [one for one in out if isinstance(one, RunOperator)]
    if end == "failed":
        brain.failed(run.run, "no reason")
        brain.failed(1, "no reason")
    elif end == "forgotten":
        for request in ("r1", "r2", "r3"):
            brain.forget(request)
        assert brain.held_bytes == 10, "that of the run in progress"
        brain.completed(run.run, [OUT])
    elif end == "expired":
        brain.expire(float("inf"))
        brain.completed(run.run, [OUT])
    else:
        if end == "again":  # repeated messages are not kept
            send(brain, "a", "r2", "left", 500)
            send(brain, "a", "r1", "source", 500)
        assert brain.held_bytes == 21
        brain.completed(run.run, [OUT])
        brain.completed(1, [OUT])
    brain.forget("r2")
    assert brain.held_bytes == 0


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sampled_from(["source", "left", "right", "part"])))
)
def test_it_never_keeps_more_than_its_limits_and_nothing_in_the_end(steps: list[tuple[str, int, str]]) -> None:
    brain = make(input_bytes=50, requests=6)
    running: list[RunOperator] = []
    for sender, number, upstream in steps:
        out = send(brain, sender, f"r{number}", upstream, 3 * number)
        running += [one for one in out if isinstance(one, RunOperator)]
        assert brain.held_bytes <= 50
        if number == 9 and running:
            out = brain.completed(running[-1].run, [OUT] * len(running[-1].items))
            running += [one for one in out if isinstance(one, RunOperator)]
    for number in range(10):
        brain.forget(f"r{number}")
    while running:
        run = running.pop()
        running += [one for one in brain.completed(run.run, [OUT] * len(run.items)) if isinstance(one, RunOperator)]
    assert brain.held_bytes == 0
