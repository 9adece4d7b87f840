"""How many direct calls share a run, who gets which answer, and when a runner busy-waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jellybean_agent import AgentError, RunOperator
from jellybean_agent.brain.messages import DIRECT_CALL_ROUTE, WorkItem
from jellybean_agent.worker.direct_calls import MAX_DIRECT_CALLS, DirectCalls

X = [np.zeros((1, 2), np.float32)]


def run_of(number: int, route: int = DIRECT_CALL_ROUTE) -> RunOperator:
    return RunOperator(number, "op", (WorkItem(0, "direct-0", route, (), ()),))


def test_each_call_gets_its_own_answer_or_error() -> None:
    calls, got = DirectCalls(), dict[str, Any]()
    ids = [calls.add("op", X, lambda answer, name=name: got.update({name: answer})) for name in "abcd"]
    assert len(set(ids)) == 4
    assert (len(calls), calls.unsubmitted) == (4, 4)
    assert [call[0] for call in calls.take_unsubmitted()] == ids
    assert (len(calls), calls.unsubmitted) == (4, 0)
    error = AgentError("it failed")
    calls.answer({ids[0]: {"y": X[0]}, "unknown": {}})
    calls.fail(ids[1], error)
    assert got == {"a": {"y": X[0]}, "b": error}
    assert ids[0] not in calls and ids[2] in calls
    assert calls.drop(ids[2])
    assert not calls.drop(ids[2])
    calls.answer({ids[2]: {"y": X[0]}})
    assert "c" not in got
    calls.fail_all(error)
    assert (got["d"], len(calls)) == (error, 0)


def test_a_dropped_call_is_not_submitted() -> None:
    calls = DirectCalls()
    first, second = calls.add("op", X, print), calls.add("op", X, print)
    calls.drop(first)
    assert [call[0] for call in calls.take_unsubmitted()] == [second]
    calls.add("op", X, lambda _: None)
    calls.fail_all(AgentError("the end"))
    assert calls.unsubmitted == 0


@pytest.mark.parametrize(
    ("run_s", "size"), [(1e-3, 1), (0.6e-3, 1), (0.4e-3, 2), (1e-4, 10), (1e-9, MAX_DIRECT_CALLS), (0.0, 32), (5.0, 1)]
)
def test_short_runs_are_shared_by_more_calls(run_s: float, size: int) -> None:
    assert DirectCalls().batch_size("op", run_s) == size


def test_the_shortest_recent_run_counts_and_is_slowly_forgotten() -> None:
    calls = DirectCalls()
    assert calls.batch_size("op", 1e-4) == 10
    assert calls.batch_size("op", 1.0) == 9, "two percent longer"
    assert calls.batch_size("other", 1e-3) == 1
    for _ in range(36):
        size = calls.batch_size("op", 1.0)
    assert size == 4
    assert calls.batch_size("op", 1e-4) == 10


def test_a_single_call_is_waited_for_unless_that_was_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = DirectCalls()
    assert calls.spin_s(run_of(1), 10.0) is None, "no call is in progress"
    first = calls.add("op", X, lambda _: None)
    assert calls.spin_s(run_of(1), 10.0) == 150e-6
    assert calls.spin_s(run_of(1, route=0), 10.0) is None, "a run of the pipeline"
    second = calls.add("op", X, lambda _: None)
    assert calls.spin_s(run_of(1), 10.0) is None, "others are in progress"
    calls.drop(second)
    for _ in range(2):
        calls.spun(failed=True)
    assert calls.spin_s(run_of(1), 10.0) == 150e-6
    calls.spun(failed=True)
    assert calls.spin_s(run_of(1), 10.0) == 0.0
    assert calls.spin_s(run_of(64), 10.0) == 150e-6, "it is tried now and then"
    calls.spun(failed=False)
    assert calls.spin_s(run_of(1), 10.0) == 150e-6
    monkeypatch.setattr("jellybean_agent.worker.direct_calls.time.monotonic", lambda: 20.0)
    calls.answer({first: {}})
    calls.add("op", X, lambda _: None)
    assert calls.spin_s(run_of(1), 20.0 + 20e-6) is None, "the last answer is too recent"
    assert calls.spin_s(run_of(1), 20.0 + 40e-6) == 150e-6


def test_the_id_of_a_call_is_known_to_nobody_else() -> None:
    """Else a neighbour could name it in a message, and fail the call."""
    calls, others = DirectCalls(), DirectCalls()
    ids = [one.add("double", [], lambda _: None) for one in (calls, calls, others)]
    assert len({name.rpartition("-")[0] for name in ids}) == 2
    assert all(len(name) >= len("direct-") + 16 for name in ids)


def test_clients_share_the_calls_in_flight() -> None:
    calls = DirectCalls()
    ids = [calls.add("op", X, print, "many") for _ in range(40)]
    assert [bool(request) for request in ids] == [True] * MAX_DIRECT_CALLS + [False] * (40 - MAX_DIRECT_CALLS)
    other = calls.add("op", X, print, "other")
    assert other
    assert len(calls) == len(calls.take_unsubmitted()) == MAX_DIRECT_CALLS + 1
    calls.fail(ids[0], AgentError("it failed"))
    calls.drop(ids[1])
    calls.answer({ids[2]: {}})
    assert [bool(calls.add("op", X, print, "many")) for _ in range(3)] == [True, True, False], "the other one has some"
    calls.fail_all(AgentError("the end"))
    assert all(calls.add("op", X, print, "many") for _ in range(MAX_DIRECT_CALLS))
