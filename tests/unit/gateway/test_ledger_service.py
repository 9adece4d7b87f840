"""Questions to a gateway about its ledger: bounds, refusals in words, whom a caller may label, messages."""

from __future__ import annotations

import asyncio
import math
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from jellybean.errors import InputError
from jellybean.ledger import (
    EXACT_MATCH,
    Accuracies,
    AccuracyPoint,
    AuditLine,
    By,
    CostLine,
    Event,
    EventKind,
    Figure,
    LabelledBy,
    LabelOutcome,
    LaterLabel,
    LedgerError,
    PlanCounts,
    Port,
    ReceivedCount,
    ServedAccuracy,
    ServedTime,
    Span,
    TimelinePoint,
    ValueLine,
    WorkCount,
)
from jellybean.serving import Client, RemoteLedger, RequestError
from jellybean.serving import ledger_messages as messages
from jellybean.serving.gateway.accounting import ledger_service
from jellybean.serving.gateway.accounting.ledger_answers import LedgerAnswers
from jellybean.serving.gateway.accounting.ledger_service import LedgerService, label_scope
from jellybean_agent import Identity, Role, StatusError, tls_auth_context
from jellybean_protos.gateway.v1 import ledger_pb2 as pb


class Call:
    """The context of a call. `name`: in the caller's certificate; None: it has none."""

    def __init__(
        self, role: Role = Role.ADMIN, name: str | None = "root", peer: str = "ipv4:127.0.0.1:1", workflow: str = "w"
    ) -> None:
        self._uri = None if name is None else Identity(workflow, role, name).uri
        self._peer = peer
        self.aborted: tuple[grpc.StatusCode, str] | None = None

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> Any:
        return {} if self._uri is None else tls_auth_context([self._uri])

    async def abort(self, status: grpc.StatusCode, reason: str) -> None:
        self.aborted = status, reason
        raise grpc.aio.AbortError(reason)


class Workflows:
    """The workflow that is found for a label, whatever its name."""

    def __init__(self, name: str, caller: str) -> None:
        self.name, self.caller = name, caller

    async def write_answers(self) -> None:
        pass


class Answers:
    """Answers when it may, or raises."""

    def __init__(self, error: Exception | None = None, name: str = "") -> None:
        self.may_answer, self.error, self.name = threading.Event(), error, name
        self.asked = 0

    def cost(self, _request: pb.CostRequest) -> pb.CostResponse:
        self.asked += 1
        assert self.may_answer.wait(30)
        if self.error is not None:
            raise self.error
        return pb.CostResponse(lines=[pb.CostLine(name=self.name)])

    def close(self) -> None:
        pass


def refused(service: LedgerService) -> tuple[grpc.StatusCode, str]:
    """How a question about costs is refused."""
    call = Call()
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(service.Cost(pb.CostRequest(by="day"), call))
    assert call.aborted is not None
    return call.aborted


def ask(service: LedgerService, count: int, *callers: Call) -> list[asyncio.Task[Any]]:
    """So many questions of each caller, in turn."""
    return [
        asyncio.create_task(service.Cost(pb.CostRequest(by="day"), caller)) for _ in range(count) for caller in callers
    ]


def test_many_questions_wait_and_more_are_refused_while_the_gateway_goes_on() -> None:
    answers = Answers()

    async def test() -> None:
        service = LedgerService(answers, Workflows)  # type: ignore[arg-type]
        for _ in range(2):  # those that have ended leave room for as many
            tasks = ask(service, 20, Call())
            await asyncio.wait(tasks, timeout=0.05)  # the event loop is free meanwhile
            refusals = [task for task in tasks if task.done()]
            answers.may_answer.set()
            await asyncio.wait(tasks)
            answers.may_answer.clear()
            told = "16 questions about the ledger wait already, 16 of them yours: ask again in a moment"
            assert [str(task.exception()) for task in refusals] == [told] * 4

    asyncio.run(test())


def test_a_client_with_many_questions_leaves_room_and_a_thread_for_another() -> None:
    """One question of a client runs at a time, so the second thread is free for who comes later."""
    answers = Answers()

    async def test() -> None:
        service = LedgerService(answers, Workflows)  # type: ignore[arg-type]
        many = ask(service, 20, Call(Role.CLIENT, "many"))
        await asyncio.wait(many, timeout=0.05)
        assert sum(task.done() for task in many) == 6  # refused: it has 14 of 16
        others = ask(service, 1, Call(Role.CLIENT, "other"), Call(Role.ADMIN, "root"))
        await asyncio.wait(others, timeout=0.05)
        assert not any(task.done() for task in others)
        assert answers.asked == 2
        answers.may_answer.set()
        await asyncio.wait([*many, *others])
        assert [task.exception() for task in others] == [None, None]
        assert answers.asked == 16

    asyncio.run(test())


def test_refusals_are_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    status, reason = refused(LedgerService(None, Workflows))
    assert (status, "writes no ledger" in reason) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    for error, wanted in (
        (InputError("by 'x': it is one of day"), grpc.StatusCode.INVALID_ARGUMENT),
        (LedgerError("ledger x: no space left"), grpc.StatusCode.UNAVAILABLE),
    ):
        answers = Answers(error)
        answers.may_answer.set()
        assert refused(LedgerService(answers, Workflows)) == (wanted, str(error))  # type: ignore[arg-type]
    monkeypatch.setattr(ledger_service, "MAX_ANSWER_BYTES", 2**20)
    answers = Answers(name="x" * 2**21)
    answers.may_answer.set()
    status, reason = refused(LedgerService(answers, Workflows))  # type: ignore[arg-type]
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "2 MiB, above the limit of 1 MiB: ask about a shorter time (--since, --until)" in reason


def test_questions_that_are_none_name_what_is_one(tmp_path: Path) -> None:
    answers = LedgerAnswers(str(tmp_path / "ledger.db"), {"": EXACT_MATCH})
    for ask, words in (
        (lambda: answers.cost(pb.CostRequest(by="colour")), "'colour': it is one of day, hour, workflow"),
        (lambda: answers.accuracy(pb.AccuracyRequest(by="worker")), "'worker': it is one of all, day"),
        (lambda: answers.timeline(pb.TimelineRequest(piece_s=1)), "pieces of 1 s: the ledger has none shorter than 10"),
        (lambda: answers.accuracy_timeline(pb.AccuracyTimelineRequest(piece_s=9)), "pieces of 9 s"),
        (lambda: answers.label(pb.LabelRequest(labels=[pb.RequestLabel(label="1")])), "label 1 has no id"),
        (lambda: answers.label(pb.LabelRequest(labels=[pb.RequestLabel(id="é" * 200)])), "its id has 400 bytes"),
        (
            lambda: answers.label(pb.LabelRequest(labels=[pb.RequestLabel(id="a", label="1" * 5000)])),
            "its label has 5000 bytes, and may have 4096",
        ),
    ):
        with pytest.raises(InputError) as error:
            ask()
        assert words in str(error.value)
    (outcome,) = answers.label(pb.LabelRequest(labels=[pb.RequestLabel(id="a\0", label="1")])).outcomes
    assert "no answer to a request" in outcome.problem
    answers.close()


def test_who_may_label_whose_requests() -> None:
    assert label_scope(Call(Role.ADMIN, "root")) is None
    assert label_scope(Call(Role.CLIENT, "alice")) == "alice"
    assert label_scope(Call(name=None)) == ""  # callers without a certificate are one client
    assert label_scope(Call(name=None, peer="unix:/run/g.sock")) is None  # the owner
    request = pb.LabelRequest(labels=[pb.RequestLabel(id="1", label="2", client="bob")])
    with pytest.raises(StatusError, match="client alice may label its own requests, not those of 'bob'"):
        asyncio.run(LedgerService(None, Workflows).label(request, Call(Role.CLIENT, "alice")))


def test_a_client_of_one_workflow_is_another_than_one_of_all_with_its_name() -> None:
    ann = Call(Role.CLIENT, "ann", workflow="plan/shop")
    assert label_scope(ann) == "shop/ann"
    assert label_scope(Call(Role.CLIENT, "ann", workflow="plan")) == "ann"
    request = pb.LabelRequest(labels=[pb.RequestLabel(id="1", label="2", client="ann")])
    with pytest.raises(StatusError, match="client shop/ann may label its own requests, not those of 'ann'"):
        asyncio.run(LedgerService(None, Workflows).label(request, ann))


def test_answers_are_the_same_after_their_way_as_messages() -> None:
    lines = (CostLine("ann", 1.5, 0.25, 3, 0), CostLine("", 0.1, 0.0, None, None))
    assert messages.read_cost(messages.cost_message(lines)) == lines
    points = (TimelinePoint(10.0, 9.5, 0.1, 4, 1, None), TimelinePoint(20.0, 10.0, 0.1, 4, 1, math.inf))
    assert messages.read_timeline(messages.timeline_message(points)) == points
    events = tuple(Event(number, "run", kind, "plan", "note") for number, kind in enumerate(EventKind))
    later = messages.events_message(events)
    later.events.add(kind="of a later version")
    assert messages.read_events(later) == events
    accuracies = Accuracies((ServedAccuracy("p", 10, 50.0, 23.7, 76.3),), 4)
    assert messages.read_accuracy(messages.accuracy_message(accuracies)) == accuracies
    labels = (LaterLabel("a", "1"), LaterLabel("b", "text", ""), LaterLabel("c", "[1, 2]", "ann"))
    assert messages.read_labels_message(messages.labels_message(labels)) == labels
    pieces = (AccuracyPoint(10.0, accuracies.lines[0]), AccuracyPoint(20.0, accuracies.lines[0]))
    assert messages.read_accuracy_timeline(messages.accuracy_timeline_message(pieces)) == pieces
    audits = (
        AuditLine(10.0, 9.5, "w", "p", "store-1", 4, 3.5, 1, 2, "read=big"),
        AuditLine(20.0, 10.0, "w", "p", "", 0, 0.0, 0, 1),
    )
    assert messages.read_audits(messages.audits_message(audits), "w", "p") == audits
    for time in (ServedTime(1.0, 2.5, {"p": 1.5, "q": 0.0}), None):
        assert messages.read_served_time(messages.served_time_message(time)) == time
    outcomes = (LabelOutcome(0.0), LabelOutcome(1.0), LabelOutcome(None, "why"))
    assert messages.read_outcomes(messages.outcomes_message(outcomes)) == outcomes
    value = ValueLine(1.0, 10.0, "w", "p", Port.ANSWER, "read", Figure.SPREAD, 9, 0.5, 0.1)
    received, work = ReceivedCount(1.0, 10.0, 4, "w"), WorkCount(1.0, 10.0, "o", "w-1", 4.0, 0.2, "w")
    counts = PlanCounts("p", (received,), (work,), (value,))
    assert messages.read_counts(messages.counts_message(counts)) == counts
    assert messages.read_counts(messages.counts_message(None)) is None
    for span in (Span(), Span(1.0), Span(until_s=2.0), Span(0.0, 3.0, plan="p")):
        assert messages.read_span(messages.span_message(span)) == span


def test_a_gateway_of_an_older_version_is_told_to_be_updated() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with Client(f"127.0.0.1:{port}") as client:
        for ask in (lambda asked: asked.cost(By.DAY), lambda asked: asked.accuracy(LabelledBy.ALL, "w")):
            with pytest.raises(RequestError, match="answers no questions about its ledger: update its JellyBean"):
                ask(RemoteLedger(client))
    server.stop(None)
