"""The brain by example: find fans out to read, number gathers; one worker or two."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jellybean_agent import (
    GATEWAY,
    Brain,
    EdgeMessage,
    FanOutPath,
    Instruction,
    OperatorWiring,
    RequestFailed,
    RunOperator,
    SendMessage,
)
from jellybean_agent.brain.brain import MemoryLimits
from jellybean_agent.brain.messages import WorkItem

WIRING = {
    "find": OperatorWiring((("strip", "each"),), (("shape", "fan_out"), ("strokes", "fan_out"))),
    "shape": OperatorWiring((("find", "fan_out"),), (("read", "each"),)),
    "strokes": OperatorWiring((("find", "fan_out"),), (("read", "each"),)),
    "read": OperatorWiring((("shape", "each"), ("strokes", "each")), (("number", "gather"),)),
    "number": OperatorWiring((("read", "gather"), ("strip", "each")), ()),
}
HERE = dict.fromkeys(WIRING, "a-1")
SPLIT = {**HERE, "read": "b-1", "number": "b-1"}


class Rows:
    """Outputs of `n` rows, or of another number for one downstream."""

    def __init__(self, n: int = 1, **other: int) -> None:
        self.n, self.other = n, other

    def rows(self, downstream: str) -> int:
        return self.other.get(downstream, self.n)

    def take(self, downstream: str, row: int | None) -> object:
        return downstream if row is None else (downstream, row)


class Scalar:
    """An output without rows."""

    def rows(self, downstream: str) -> int:
        raise ValueError("the output has no leading dimension")

    def take(self, downstream: str, row: int | None) -> object:
        return 1


def make(worker: str = "a-1", routes: Sequence[dict[str, str]] = (HERE, SPLIT)) -> Brain:
    return Brain(worker, WIRING, routes)


def source(request: str = "r", downstream: str = "find", route: int = 0) -> EdgeMessage:
    return EdgeMessage(request, route, "strip", downstream, (), "data")


def read(index: int, count: int, request: str = "r", route: int = 1) -> EdgeMessage:
    return EdgeMessage(request, route, "read", "number", ((index, count),), f"digit {index}")


def only_run(out: Sequence[Instruction]) -> RunOperator:
    (run,) = [instruction for instruction in out if isinstance(instruction, RunOperator)]
    return run


def only(run: RunOperator) -> WorkItem:
    (item,) = run.items
    return item


def sends(out: Sequence[Instruction]) -> list[SendMessage]:
    return [instruction for instruction in out if isinstance(instruction, SendMessage)]


def test_a_whole_request_on_one_worker() -> None:
    brain = make()
    assert brain.received(source(downstream="number")) == []
    run = only_run(brain.received(source()))
    assert (run.operator, only(run).inputs, only(run).path) == ("find", ("data",), ())
    seen = []
    out = brain.completed(run.run, [Rows(2)])
    while not sends(out):
        run = only_run(out)
        seen.append((run.operator, only(run).path))
        out = brain.completed(run.run, [Rows()])
    assert seen == [
        ("shape", ((0, 2),)),
        ("shape", ((1, 2),)),
        ("strokes", ((0, 2),)),
        ("strokes", ((1, 2),)),
        ("read", ((0, 2),)),
        ("read", ((1, 2),)),
        ("number", ()),
    ]
    assert only(run).inputs == (("number", "number"), "data")
    assert out == [SendMessage(GATEWAY, EdgeMessage("r", 0, "number", "", (), ""))]
    assert (brain.queued, brain.requests_in_flight) == (0, 0)


def test_children_go_to_the_worker_that_the_route_names_in_order() -> None:
    brain = make()
    shape = only_run(brain.completed(only_run(brain.received(source(route=1))).run, [Rows(1)]))
    (send,) = sends(brain.completed(shape.run, [Rows()]))
    assert (send.worker, send.message.downstream, send.message.path) == ("b-1", "read", ((0, 1),))


def test_gathered_children_are_in_the_order_of_their_index() -> None:
    brain = make("b-1")
    brain.received(source(downstream="number", route=1))
    assert [brain.received(read(index, 3)) for index in (2, 0)] == [[], []]
    assert brain.requests_in_flight == 1
    run = only_run(brain.received(read(1, 3)))
    assert only(run).inputs == (("digit 0", "digit 1", "digit 2"), "data")


def test_no_child_at_all_passes_through_joins_and_ends_in_an_empty_gather() -> None:
    brain = make()
    brain.received(source(downstream="number"))
    run = only_run(brain.completed(only_run(brain.received(source())).run, [Rows(0)]))
    assert (run.operator, only(run).path, only(run).inputs) == ("number", (), ((), "data"))


def test_no_child_tells_other_workers_with_a_marker() -> None:
    brain = make()
    out = brain.completed(only_run(brain.received(source(route=1))).run, [Rows(0)])
    assert [(s.worker, s.message.upstream, s.message.path, s.message.payload) for s in sends(out)] == [
        ("b-1", "shape", ((0, 0),), None),
        ("b-1", "strokes", ((0, 0),), None),
    ]
    assert brain.requests_in_flight == 0


NESTED = {
    "page": OperatorWiring((("scan", "each"),), (("line", "fan_out"),)),
    "line": OperatorWiring((("page", "fan_out"),), (("word", "fan_out"),)),
    "word": OperatorWiring((("line", "fan_out"),), (("lines", "gather"),)),
    "lines": OperatorWiring((("word", "gather"),), (("text", "gather"),)),
    "text": OperatorWiring((("lines", "gather"),), ()),
}


def run_nested(children: dict[FanOutPath, int]) -> list[tuple[str, FanOutPath, object]]:
    """Runs page to text on one worker; returns each run's operator, path and number of gathered inputs."""
    brain = Brain("a-1", NESTED, [dict.fromkeys(NESTED, "a-1")])
    out = brain.received(EdgeMessage("r", 0, "scan", "page"))
    seen: list[tuple[str, FanOutPath, object]] = []
    while runs := [instruction for instruction in out if isinstance(instruction, RunOperator)]:
        run = runs[0]
        inputs, path = only(run).inputs, only(run).path
        gathered = len(inputs[0]) if isinstance(inputs[0], tuple) and run.operator[-1] in "st" else None
        seen.append((run.operator, path, gathered))
        out = brain.completed(run.run, [Rows(children.get(path, 0))])
    assert [send.worker for send in sends(out)] == [GATEWAY]
    assert brain.requests_in_flight == 0
    return seen


def test_an_empty_inner_fan_out_of_one_child_only() -> None:
    seen = run_nested({(): 2, ((0, 2),): 0, ((1, 2),): 3})
    assert [path for name, path, _ in seen if name == "word"] == [((1, 2), (i, 3)) for i in range(3)]
    assert [(path, n) for name, path, n in seen if name == "lines"] == [(((0, 2),), 0), (((1, 2),), 3)]
    assert seen[-1] == ("text", (), 2)


def test_an_empty_outer_fan_out_skips_the_inner_levels() -> None:
    assert run_nested({(): 0}) == [("page", (), None), ("text", (), 0)]


def test_one_run_is_outstanding_and_the_rest_waits_first_come_first_served() -> None:
    brain = make()
    first = only_run(brain.received(source("r1")))
    assert brain.received(source("r2")) == []
    assert brain.received(source("r3")) == []
    assert (brain.queued, brain.requests_in_flight) == (2, 3)
    assert only(only_run(brain.completed(first.run, [Rows(1)]))).request == "r2"


def test_repeated_messages_change_nothing_before_during_and_after_the_run() -> None:
    brain = make("b-1")
    brain.received(source(downstream="number", route=1))
    assert brain.received(source(downstream="number", route=1)) == []
    assert brain.received(read(0, 2)) == []
    assert brain.received(read(0, 2)) == []
    run = only_run(brain.received(read(1, 2)))
    assert brain.received(read(1, 2)) == []
    assert len(sends(brain.completed(run.run, [Rows()]))) == 1
    assert brain.received(read(0, 2)) == []
    assert brain.received(source(downstream="number", route=1)) == []
    assert (brain.queued, brain.requests_in_flight) == (0, 0)


def test_a_run_reported_twice_counts_once() -> None:
    brain = make("b-1")
    brain.received(source(downstream="number", route=1))
    run = only_run(brain.received(read(0, 1)))
    assert len(brain.completed(run.run, [Rows()])) == 1
    assert brain.completed(run.run, [Rows()]) == ()
    assert brain.failed(run.run, "late") == ()
    assert brain.completed(99, [Rows()]) == ()


def test_a_failed_run_fails_its_request_and_frees_all_of_it() -> None:
    brain = make()
    find = only_run(brain.received(source("r1")))
    brain.received(source("r2"))
    brain.received(source("r1", "number"))
    second = only_run(brain.completed(find.run, [Rows(3)]))
    assert only(second).request == "r2"
    shape = only_run(brain.failed(second.run, "out of memory"))
    assert (only(shape).request, brain.requests_in_flight) == ("r1", 1)
    assert brain.failed(shape.run, "broken") == [RequestFailed("r1", "shape", "broken")]
    assert (brain.queued, brain.requests_in_flight) == (0, 0)
    assert brain.received(source("r1", "number")) == []
    assert brain.requests_in_flight == 0


def test_forgetting_frees_what_waits_and_late_messages_stay_out() -> None:
    brain = make()
    running = only_run(brain.received(source("r1")))
    brain.received(source("r2"))
    brain.received(source("r2", "number"))
    assert brain.forget("r2") == ()
    assert (brain.queued, brain.requests_in_flight) == (0, 1)
    assert brain.received(source("r2")) == []
    assert brain.received(source("r2", "number")) == []
    assert (brain.queued, brain.requests_in_flight) == (0, 1)
    assert only(only_run(brain.completed(running.run, [Rows(1)]))).request == "r1"


def test_a_run_of_a_forgotten_request_ends_and_leads_nowhere() -> None:
    brain = make(routes=[SPLIT])
    run = only_run(brain.received(source("r1")))
    brain.received(source("r2"))
    brain.forget("r1")
    assert brain.requests_in_flight == 2
    (following,) = brain.completed(run.run, [Rows(0)])
    assert isinstance(following, RunOperator)
    assert (only(following).request, brain.requests_in_flight) == ("r2", 1)


def test_a_failed_run_of_a_forgotten_request_is_not_reported() -> None:
    brain = make()
    run = only_run(brain.received(source("r1")))
    brain.forget("r1")
    assert brain.failed(run.run, "broken") == []
    assert brain.requests_in_flight == 0


def test_forgetting_an_unknown_request_keeps_its_messages_out_when_they_come() -> None:
    brain = make()
    brain.forget("r")
    assert brain.received(source()) == []
    assert brain.requests_in_flight == 0


def test_what_is_remembered_of_past_requests_is_bounded() -> None:
    brain = Brain("b-1", WIRING, (HERE, SPLIT), limits=MemoryLimits(given_up=10, joined=20))
    for number in range(1000):
        request = f"r{number}"
        brain.received(source(request, "number", route=1))
        if number % 2:
            brain.forget(request)
        else:
            brain.completed(only_run(brain.received(read(0, 1, request))).run, [Rows()])
    assert brain.requests_in_flight == 0
    assert brain.remembered == (10, 20)


def test_outputs_that_raise_leave_the_run_outstanding_so_that_it_can_be_failed() -> None:
    brain = make()
    run = only_run(brain.received(source("r1")))
    brain.received(source("r2"))
    with pytest.raises(ValueError, match="no leading dimension"):
        brain.completed(run.run, [Scalar()])
    failure, following = brain.failed(run.run, "the output has no leading dimension")
    assert failure == RequestFailed("r1", "find", "the output has no leading dimension")
    assert isinstance(following, RunOperator)


@pytest.mark.parametrize("shape, strokes", [(2, 3), (0, 2), (2, 0)])
def test_joined_branches_with_different_numbers_of_children_fail_instead_of_waiting_for_ever(
    shape: int, strokes: int
) -> None:
    brain = make()
    out = list(brain.completed(only_run(brain.received(source())).run, [Rows(shape=shape, strokes=strokes)]))
    while runs := [instruction for instruction in out if isinstance(instruction, RunOperator)]:
        out = list(brain.completed(runs[0].run, [Rows()]))
    (failed,) = out
    assert isinstance(failed, RequestFailed)
    assert (failed.request, failed.operator) == ("r", "read")
    assert "disagree about the number of children" in failed.reason
    assert (brain.queued, brain.requests_in_flight) == (0, 0)


def test_a_gather_whose_children_disagree_about_their_number_fails() -> None:
    brain = make("b-1")
    brain.received(read(0, 3))
    (failed,) = brain.received(read(1, 2))
    assert isinstance(failed, RequestFailed)
    assert brain.requests_in_flight == 0


@pytest.mark.parametrize(
    "message, reason",
    [
        (EdgeMessage("r", 0, "strip", "nobody"), "has no edge from 'strip' to 'nobody'"),
        (EdgeMessage("r", 0, "number", "find"), "has no edge from 'number' to 'find'"),
        (EdgeMessage("r", 2, "strip", "find"), "route 2 does not exist: the plan has 2"),
        (EdgeMessage("r", 0, "read", "number"), "names no child"),
        (EdgeMessage("r", 0, "read", "number", ((3, 3),)), "impossible child index"),
        (EdgeMessage("r", 0, "read", "number", ((-1, 3),)), "impossible child index"),
    ],
)
def test_messages_that_cannot_be_fail_their_request_once_and_nothing_else(message: EdgeMessage, reason: str) -> None:
    brain = make()
    running = only_run(brain.received(source("other")))
    (failed,) = brain.received(message)
    assert isinstance(failed, RequestFailed)
    assert reason in failed.reason
    assert brain.received(message) == []
    assert brain.requests_in_flight == 1
    assert brain.completed(running.run, [Rows(1)])


def test_inputs_whose_others_never_come_are_bounded() -> None:
    brain = Brain("a-1", WIRING, (HERE, SPLIT), limits=MemoryLimits(requests=2))
    out = [one for number in range(4) for one in brain.received(source(f"r{number}", downstream="number"))]
    assert [(one.request, one.reason) for one in out] == [
        ("r0", "overloaded: 2 newer requests are in flight"),
        ("r1", "overloaded: 2 newer requests are in flight"),
    ]
    assert all(one.overloaded for one in out)
    assert brain.requests_in_flight == 2
    assert brain.received(source("r0", downstream="number")) == []  # it stays forgotten
    assert brain.requests_in_flight == 2
