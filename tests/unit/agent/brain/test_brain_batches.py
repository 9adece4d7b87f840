"""The brain takes several requests into one run: which, when, and what becomes of them when it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jellybean_agent import (
    GATEWAY,
    BatchPolicy,
    Brain,
    EdgeMessage,
    Instruction,
    OperatorWiring,
    RequestFailed,
    RunOperator,
    SendMessage,
)

WIRING = {
    "see": OperatorWiring((("camera", "each"),), ()),
    "hear": OperatorWiring((("phone", "each"),), ()),
}
UPSTREAM = {"see": "camera", "hear": "phone"}


class Whole:
    """An output without rows of interest."""

    def rows(self, downstream: str) -> int:
        return 1

    def take(self, downstream: str, row: int | None) -> object:
        return "out"


def make(batches: Mapping[str, int] | None = None) -> Brain:
    return Brain("a-1", WIRING, [dict.fromkeys(WIRING, "a-1")], BatchPolicy(batches or {"see": 3}))


def offer(brain: Brain, *requests: str, operator: str = "see") -> list[Instruction]:
    return [i for r in requests for i in brain.received(EdgeMessage(r, 0, UPSTREAM[operator], operator, (), r))]


def requests(instructions: Sequence[Instruction]) -> list[str]:
    (run,) = [instruction for instruction in instructions if isinstance(instruction, RunOperator)]
    assert [item.inputs for item in run.items] == [(item.request,) for item in run.items]
    return [item.request for item in run.items]


def run_of(instructions: Sequence[Instruction]) -> RunOperator:
    return next(instruction for instruction in instructions if isinstance(instruction, RunOperator))


def done(brain: Brain, run: RunOperator) -> list[Instruction]:
    return list(brain.completed(run.run, [Whole()] * len(run.items)))


def test_a_free_worker_waits_for_nobody_and_then_takes_what_has_come() -> None:
    brain = make()
    first = offer(brain, "a", "b", "c", "d", "e")
    assert requests(first) == ["a"]
    second = done(brain, run_of(first))
    assert requests(second) == ["b", "c", "d"]
    assert brain.queued == 1
    third = done(brain, run_of(second))
    assert [i.message.request for i in third if isinstance(i, SendMessage)] == ["b", "c", "d"]
    assert all(i.worker == GATEWAY for i in third if isinstance(i, SendMessage))
    assert requests(third) == ["e"]
    assert (brain.queued, brain.requests_in_flight) == (0, 1)


def test_the_first_that_waits_says_which_operator_runs() -> None:
    brain = make({"see": 3, "hear": 2})
    under_way = run_of(offer(brain, "a"))
    for operator, request in (("hear", "1"), ("see", "b"), ("hear", "2"), ("see", "c"), ("hear", "3")):
        offer(brain, request, operator=operator)
    second = done(brain, under_way)
    assert requests(second) == ["1", "2"]
    third = done(brain, run_of(second))
    assert requests(third) == ["b", "c"]
    assert requests(done(brain, run_of(third))) == ["3"]


def test_without_a_batch_size_requests_run_one_by_one() -> None:
    brain = make({"hear": 4})
    first = offer(brain, "a", "b", "c")
    assert requests(done(brain, run_of(first))) == ["b"]


def test_a_failed_batch_runs_again_one_by_one_before_what_came_later() -> None:
    brain = make()
    batch = done(brain, run_of(offer(brain, "a", "b", "c", "d", "e", "f")))
    assert requests(batch) == ["b", "c", "d"]
    assert brain.requests_in_flight == 5
    again = list(brain.failed(run_of(batch).run, "broken"))
    assert [type(i) for i in again] == [RunOperator]
    assert requests(again) == ["b"]
    assert (brain.queued, brain.requests_in_flight) == (4, 5)
    again = done(brain, run_of(again))
    assert requests(again) == ["c"]
    again = list(brain.failed(run_of(again).run, "broken"))
    assert [i for i in again if isinstance(i, RequestFailed)] == [RequestFailed("c", "see", "broken")]
    assert requests(again) == ["d"]
    assert requests(done(brain, run_of(again))) == ["e", "f"]
    assert brain.requests_in_flight == 2


def test_forgotten_requests_of_a_batch_lead_nowhere_and_do_not_run_again() -> None:
    brain = make()
    batch = done(brain, run_of(offer(brain, "a", "b", "c", "d")))
    brain.forget("c")
    assert brain.requests_in_flight == 3
    out = done(brain, run_of(batch))
    assert [i.message.request for i in out if isinstance(i, SendMessage)] == ["b", "d"]
    assert (brain.queued, brain.requests_in_flight) == (0, 0)

    brain = make()
    batch = done(brain, run_of(offer(brain, "a", "b", "c", "d")))
    brain.forget("b")
    again = list(brain.failed(run_of(batch).run, "broken"))
    assert requests(again) == ["c"]
    brain.forget("d")
    assert (brain.queued, brain.requests_in_flight) == (0, 1)
    assert [type(i) for i in done(brain, run_of(again))] == [SendMessage]
    assert brain.requests_in_flight == 0


def test_a_run_reported_again_after_its_batch_failed_counts_for_nothing() -> None:
    brain = make()
    batch = run_of(done(brain, run_of(offer(brain, "a", "b", "c"))))
    alone = run_of(list(brain.failed(batch.run, "broken")))
    assert done(brain, batch) == []
    assert list(brain.failed(batch.run, "broken")) == []
    assert [i.message.request for i in done(brain, alone) if isinstance(i, SendMessage)] == ["b"]


def test_items_count_in_the_order_in_which_they_became_ready() -> None:
    brain = make({"see": 2, "hear": 2})
    first = run_of(offer(brain, "a"))
    offer(brain, "1", operator="hear")
    offer(brain, "b")
    offer(brain, "2", operator="hear")
    second = run_of(done(brain, first))
    third = run_of(done(brain, second))
    assert [[item.number for item in run.items] for run in (first, second, third)] == [[0], [1, 3], [2]]


CHILDREN = {
    "cut": OperatorWiring((("page", "each"),), (("read", "fan_out"),)),
    "read": OperatorWiring((("cut", "fan_out"),), (("text", "gather"),)),
    "text": OperatorWiring((("read", "gather"),), ()),
}


class Three(Whole):
    """Three rows."""

    def rows(self, downstream: str) -> int:
        return 3


def test_children_of_one_request_share_a_run() -> None:
    brain = Brain("a-1", CHILDREN, [dict.fromkeys(CHILDREN, "a-1")], BatchPolicy({"read": 4}))
    cut = run_of(brain.received(EdgeMessage("r", 0, "page", "cut", (), "data")))
    read = run_of(brain.completed(cut.run, [Three()]))
    assert [item.path for item in read.items] == [((0, 3),), ((1, 3),), ((2, 3),)]
    text = run_of(done(brain, read))
    assert text.items[0].inputs == (("out", "out", "out"),)
    assert [type(i) for i in done(brain, text)] == [SendMessage]
    assert brain.requests_in_flight == 0


def test_an_operator_asked_for_alone_runs_in_its_turn_and_shares_no_run() -> None:
    brain = make({"see": 4, "hear": 4})
    first = offer(brain, "a")
    offer(brain, "b", "c")
    assert brain.call_operator("mine", "see", ["mine"]) == []
    offer(brain, "d", "e")
    offer(brain, "f", operator="hear")
    second = done(brain, run_of(first))
    assert requests(second) == ["b", "c"]
    third = done(brain, run_of(second))
    assert requests(third) == ["mine"]
    fourth = done(brain, run_of(third))
    assert [i for i in fourth if isinstance(i, SendMessage)] == []
    assert requests(fourth) == ["d", "e"]
    fifth = done(brain, run_of(fourth))
    assert [i.message.request for i in fifth if isinstance(i, SendMessage)] == ["d", "e"]
    assert requests(fifth) == ["f"]
    done(brain, run_of(fifth))
    assert (brain.queued, brain.requests_in_flight) == (0, 0)


def test_an_operator_asked_for_alone_fails_and_is_forgotten_like_any_request() -> None:
    brain = make()
    run = run_of(brain.call_operator("mine", "see", ["mine"]))
    brain.call_operator("other", "see", ["other"])
    offer(brain, "a", "b")
    assert brain.forget("other") == ()
    after = list(brain.failed(run.run, "broken"))
    assert [i for i in after if isinstance(i, RequestFailed)] == [RequestFailed("mine", "see", "broken")]
    assert requests(after) == ["a", "b"]


def test_what_is_asked_for_goes_together_and_overtakes_nobody() -> None:
    brain = Brain("w", {"op": OperatorWiring((("in", "each"),), ())}, [{"op": "w"}])
    brain.limit_direct_call_batch("op", 3)
    (first,) = brain.call_operator("a0", "op", ["x"])
    for number in range(1, 5):
        assert not brain.call_operator(f"a{number}", "op", ["x"])
    brain.received(EdgeMessage("r", 0, "in", "op", (), "x"))
    brain.call_operator("a5", "op", ["x"])
    brain.call_operator("a6", "op", ["x"])
    runs, run = [], first
    while True:
        assert isinstance(run, RunOperator)
        runs.append([item.request for item in run.items])
        following = brain.completed(run.run, [Whole()] * len(run.items))
        found = [instruction for instruction in following if isinstance(instruction, RunOperator)]
        if not found:
            break
        (run,) = found
    assert runs == [["a0"], ["a1", "a2", "a3"], ["a4"], ["r"], ["a5", "a6"]]


def test_what_failed_together_runs_again_alone() -> None:
    brain = Brain("w", {"op": OperatorWiring((("in", "each"),), ())}, [{"op": "w"}])
    brain.limit_direct_call_batch("op", 3)
    (run,) = brain.call_operators([(f"a{number}", "op", ["x"]) for number in range(3)])
    assert isinstance(run, RunOperator)
    ended = []
    following = brain.failed(run.run, "no")
    while following:
        ended += [instruction.request for instruction in following if isinstance(instruction, RequestFailed)]
        runs = [instruction for instruction in following if isinstance(instruction, RunOperator)]
        if not runs:
            break
        assert len(runs[0].items) == 1
        alone = runs[0].items[0].request
        following = brain.failed(runs[0].run, "no") if alone == "a1" else brain.completed(runs[0].run, [Whole()])
    assert ended == ["a1"]
    assert brain.requests_in_flight == 0


def test_messages_that_come_together_share_a_run() -> None:
    """With `more` no run starts; `start` takes all that have come, up to the batch."""
    brain = Brain("a-1", CHILDREN, [dict.fromkeys(CHILDREN, "a-1")], BatchPolicy({"read": 4}))
    children = [EdgeMessage("r", 0, "cut", "read", ((row, 6),), row) for row in range(6)]
    assert all(brain.received(message, more=True) == [] for message in children)
    first = run_of(brain.start())
    assert [item.inputs for item in first.items] == [(0,), (1,), (2,), (3,)]
    assert brain.start() == []  # one run at a time
    assert [item.inputs for item in run_of(done(brain, first)).items] == [(4,), (5,)]
