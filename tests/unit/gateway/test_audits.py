"""Which requests are audited, what becomes of audits, and that no client notices."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from jellybean.documents import load_project
from jellybean.ledger import FIRST_AUDITS, AuditLine, Ledger, Span, keep_audits
from jellybean.ledger.audits import KEPT_S, audit_lines, span_and_first_audits
from jellybean.planning import plan_project
from jellybean.serving.gateway.accounting.audit_log import AuditLog
from jellybean.serving.gateway.audits import audits
from jellybean.serving.gateway.audits.audits import LEAST_IN_FLIGHT, AuditOutcome, Audits
from jellybean.serving.gateway.audits.draw import AuditDraw, RateLimit
from jellybean.serving.gateway.plans.answer_rights import AnswerRights
from jellybean.serving.gateway.plans.open_routes import OpenRoutes
from jellybean.serving.gateway.plans.served_plan import Worker
from jellybean_agent import PlanView, encode_tensor, plan_view
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_solver import to_document
from tests.support.audited_project import RATE_PER_S, make_audited_project

SHARE = 0.05
SHORT = agent_pb2.Tensor(dtype="float32", shape=[1, 10], data=b"short")
INPUTS = {"x": encode_tensor(np.zeros((1, 11), np.float32))}


def scores(best: int) -> agent_pb2.Tensor:
    return encode_tensor(np.eye(10, dtype=np.float32)[best : best + 1])


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    folder = make_audited_project(tmp_path_factory.mktemp("audits"), share_percent=100 * SHARE)
    plan = plan_project(load_project(folder), compare=False).plan
    assert plan is not None
    return plan_view(to_document(plan))


@dataclass(eq=False)
class FakePlan:
    """A served plan whose workers are all ready, and that remembers what it was sent."""

    view: PlanView
    sent: dict[str, Mapping[str, object]] = field(default_factory=dict)
    ended: dict[str, agent_pb2.Failure | None] = field(default_factory=dict)
    broken: bool = False
    is_after_loss: bool = False

    def __post_init__(self) -> None:
        self.workers = {worker.name: Worker("ready") for worker in self.view.serving}

    def workers_on(self, route: int, *, is_audit: bool) -> frozenset[str]:
        return self.view.workers_on(route, is_audit=is_audit)

    def refuses(
        self, message: agent_pb2.Message, sender: str, route: int, operators: frozenset[str], *, is_audit: bool
    ) -> bool:
        workers = self.workers_on(route, is_audit=is_audit)
        return bool(AnswerRights(self.view).excess(message, sender, route, workers, operators))

    def signature(self, operator: str) -> None:
        return None

    def send(
        self,
        key: str,
        route: int,
        inputs: Mapping[str, object],
        deadline_s: float,
        trace: object,
        *,
        is_audit: bool,
    ) -> None:
        assert is_audit
        self.sent[key] = inputs
        if self.broken:
            raise ValueError("a worker cannot be told")

    def end_attempt(self, key: str, route: int, failure: agent_pb2.Failure | None, *, is_audit: bool) -> None:
        assert is_audit
        self.ended[key] = failure


@dataclass
class Served:
    """The attempt that answered a request."""

    plan: FakePlan
    route: int = 0


class Run:
    """Audits of a plan of which every request is drawn."""

    def __init__(self, view: PlanView, *, busy: bool = False, timeout_s: float = 60.0) -> None:
        self.plan, self.busy = FakePlan(view), busy
        self.audits = Audits(lambda: self.plan, lambda: self.busy, max_in_flight=1024, timeout_s=timeout_s)
        self.log = AuditLog()
        self.audits.on_audit = self.log.count

    def serve(self, count: int, best: int = 3) -> None:
        for _ in range(count):
            self.audits.answered(INPUTS, Served(self.plan), {"classify": scores(best)})

    def answer(self, best: int, operator: str = "audit.classify") -> bool:
        """The reference's answer to the oldest audit in flight."""
        key = next(key for key in self.plan.sent if key not in self.plan.ended)
        return self.audits.receive(
            agent_pb2.Message(request_id=key, upstream=operator, tensor=scores(best)), self.auditor
        )

    @property
    def auditor(self) -> str:
        """The worker that runs the reference."""
        return self.plan.view.routes[0]["audit.classify"]

    @property
    def ended(self) -> dict[AuditOutcome, int]:
        return self.audits.counters.ended


@pytest.mark.parametrize("share", [1.0, 0.5, 0.3, 0.05, 0.0123])
def test_draws_are_even_and_depend_on_a_key(share: float) -> None:
    count = 5_000
    draws = [[draw.draw() for _ in range(count)] for draw in (AuditDraw(share, b"a" * 16), AuditDraw(share, b"b" * 16))]
    for drawn in draws:
        totals = np.cumsum(drawn)
        assert np.all(np.abs(totals - share * np.arange(1, count + 1)) <= 1.0 + 1e-9)
    assert (draws[0] == draws[1]) is (share == 1.0)


def test_places_of_draws_are_uniform() -> None:
    draw = AuditDraw(0.1, b"key")
    places = [number % 10 for number in range(50_000) if draw.draw()]
    assert len(places) == 5_000
    counts = np.bincount(places, minlength=10)
    assert np.all(np.abs(counts - 500) < 5 * np.sqrt(450))


def test_a_rate_limit_has_a_burst() -> None:
    limit = RateLimit(2.0, 3.0)
    assert [limit.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert [limit.take(100.6), limit.take(100.6)] == [True, False]


def test_audits_are_compared_by_the_metric(view: PlanView) -> None:
    async def run() -> None:
        one = Run(view)
        one.serve(40)
        assert len(one.plan.sent) == 2
        assert all(inputs.keys() == {"audit.x"} for inputs in one.plan.sent.values())
        assert not one.audits.receive(agent_pb2.Message(request_id="a request"), one.auditor)
        assert one.answer(3, operator="another") is True
        assert one.answer(3)
        assert one.answer(4)
        assert not one.audits.receive(agent_pb2.Message(request_id=next(iter(one.plan.sent))), one.auditor)
        assert one.ended == {AuditOutcome.COMPARED: 2, AuditOutcome.SHED: 0, AuditOutcome.LOST: 0}
        assert one.audits.counters.agreed == 1.0
        assert set(one.plan.ended.values()) == {None}
        ((line),) = one.log.take()
        assert (line.audits, line.agreed, line.shed, line.lost) == (2, 1.0, 0, 0)
        assert (line.workflow, line.plan) == (view.name, view.hash)

    asyncio.run(run())


def test_an_audit_whose_answers_break_the_metric_is_lost_once(view: PlanView, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> float:
        raise ZeroDivisionError("no answer has this shape")

    async def run() -> None:
        one = Run(view)
        one.serve(20)
        monkeypatch.setattr(audits, "agreement", broken)
        assert one.answer(3)
        assert one.ended == {AuditOutcome.COMPARED: 0, AuditOutcome.SHED: 0, AuditOutcome.LOST: 1}
        ((failure),) = one.plan.ended.values()
        assert failure is not None and "no answer has this shape" in failure.reason

    asyncio.run(run())


def test_audits_are_shed_first(view: PlanView, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        busy = Run(view, busy=True)
        busy.serve(100)
        assert busy.ended[AuditOutcome.SHED] == 5
        away = Run(view)
        away.plan.workers["server-1"].state = "gone"
        away.serve(100)
        assert away.ended[AuditOutcome.SHED] == 5
        full = Run(view)  # nothing is answered, so no more than the audits' share of the gateway is in flight
        full.serve(10_000)
        most = max(LEAST_IN_FLIGHT, int(np.ceil(SHARE * 1024)))
        assert len(full.plan.sent) == most
        assert full.ended[AuditOutcome.SHED] == 500 - most
        large = Run(view)
        monkeypatch.setattr(audits, "MAX_BYTES_IN_FLIGHT", 3 * 44 / SHARE)  # the inputs of three audits
        large.serve(100)
        assert len(large.plan.sent) == 3
        assert large.answer(3)
        large.serve(100)
        assert len(large.plan.sent) == 4
        fast, began_s = Run(view), time.monotonic()  # all at once, so above the planned rate
        for _ in range(20_000):
            fast.serve(1)
            if len(fast.plan.sent) > len(fast.plan.ended):
                fast.answer(3)
        per_s = SHARE * RATE_PER_S
        assert 10.0 * per_s <= len(fast.plan.sent) <= (10.0 + time.monotonic() - began_s) * per_s + 1
        assert fast.ended[AuditOutcome.SHED] == 1_000 - len(fast.plan.sent)
        for one in (full, large, fast):
            one.audits.close()

    asyncio.run(run())


@pytest.mark.parametrize("survives", [True, False])
def test_audits_are_shed_after_a_loss_that_the_plan_bears(view: PlanView, survives: bool) -> None:
    """It has no capacity for them then, also where another workflow's worker is gone."""
    assert view.audit is not None

    async def run() -> None:
        one = Run(replace(view, audit=replace(view.audit, yields=survives)))
        one.plan.is_after_loss = True
        one.serve(100)
        assert one.ended[AuditOutcome.SHED] == (5 if survives else 0)

    asyncio.run(run())


def test_a_worker_that_only_audits_need_closes_no_route(view: PlanView) -> None:
    away: set[str] = set()
    routes = OpenRoutes(view, away.__contains__)
    assert (routes.workers(0), routes.workers(0, is_audit=True)) == ({"box-1"}, {"server-1"})
    away.add("server-1")
    routes.reweight()
    assert routes.draw() == (0, True)
    assert not routes.is_after_loss
    away.add("box-1")
    routes.reweight()
    assert routes.draw() == (0, False)
    assert routes.is_after_loss


def test_a_lost_audit_is_counted_and_not_sent_again(view: PlanView) -> None:
    async def run() -> None:
        late = Run(view, timeout_s=0.01)
        late.serve(20)
        await asyncio.sleep(0.05)
        assert late.ended[AuditOutcome.LOST] == 1
        failed = Run(view)
        failed.serve(20)
        (key,) = failed.plan.sent
        failure = agent_pb2.Failure(reason="out of memory", worker="server-1")
        assert failed.audits.receive(agent_pb2.Message(request_id=key, failure=failure), "server-1")
        gone = Run(view)
        gone.serve(20)
        gone.audits.on_worker_lost(gone.plan, "box-1", "killed")  # which served the answer
        assert gone.ended[AuditOutcome.LOST] == 0
        gone.audits.on_worker_lost(gone.plan, "server-1", "killed")
        wrong = Run(view)
        wrong.serve(20)
        (key,) = wrong.plan.sent
        message = agent_pb2.Message(request_id=key, upstream="audit.classify", tensor=SHORT)
        assert wrong.audits.receive(message, wrong.auditor)
        broken = Run(view)
        broken.plan.broken = True
        broken.serve(20)
        for one in (late, failed, gone, wrong, broken):
            assert one.ended[AuditOutcome.LOST] == 1
            assert len(one.plan.sent) == 1
            (ended,) = one.plan.ended.values()
            assert ended is not None  # the workers drop it
            ((line),) = one.log.take()
            assert (line.audits, line.lost) == (0, 1)

    asyncio.run(run())


def test_only_answers_of_the_plan_that_is_served_are_audited(view: PlanView) -> None:
    async def run() -> None:
        one, other = Run(view), FakePlan(view)
        for _ in range(100):
            one.audits.answered(INPUTS, Served(other), {"classify": scores(1)})
            one.audits.answered(INPUTS, None, {"classify": scores(1)})
        assert not one.plan.sent
        assert not other.sent

    asyncio.run(run())


def test_lines_survive_an_outage_and_are_removed_after_two_months(tmp_path: Path) -> None:
    log, line = AuditLog(), AuditLine(100.0, 10.0, "w", "plan", "store-1", 3, 2.5, 1, 0)
    log.give_back([line])
    assert log.take() == [line]
    assert log.take() == []
    ledger = Ledger(str(tmp_path / "ledger.db"), "g")
    keep_audits(ledger, [line], 200.0)
    assert audit_lines(ledger, "w", "plan") == [line]
    assert audit_lines(ledger, "other", "plan") == []
    keep_audits(ledger, [], 100.0 + KEPT_S + 1.0)
    assert audit_lines(ledger, "w", "plan") == []
    ledger.close()


def test_a_ledger_of_an_earlier_version_gets_the_selections_of_audits(tmp_path: Path) -> None:
    path, old = tmp_path / "ledger.db", AuditLine(100.0, 10.0, "w", "plan", "", 3, 2.5, 1, 0)
    ledger = Ledger(str(path), "g")
    keep_audits(ledger, [old], 200.0)
    ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("alter table ledger_audits drop column selection")
    for _ in range(2):
        ledger = Ledger(str(path), "g")
        assert audit_lines(ledger, "w", "plan")[0] == old
        keep_audits(ledger, [replace(old, selection="read=big")], 200.0)
        ledger.close()
    ledger = Ledger(str(path), "g")
    assert [line.selection for line in audit_lines(ledger, "w", "plan")] == ["", "read=big", "read=big"]
    ledger.close()


def test_questions_about_a_span_have_the_first_audits_too(tmp_path: Path) -> None:
    """Those say what is expected, where profiles do not."""
    audits_at = ((100.0, FIRST_AUDITS - 1), (110.0, 5), (120.0, 5), (130.0, 5))
    lines = [AuditLine(begin_s, 10.0, "w", "plan", "", audits, 2.5, 0, 0) for begin_s, audits in audits_at]
    ledger = Ledger(str(tmp_path / "ledger.db"), "g")
    keep_audits(ledger, lines, 200.0)
    assert span_and_first_audits(ledger, "w", "plan") == lines
    assert span_and_first_audits(ledger, "w", "plan", Span(125.0)) == [*lines[:2], lines[3]]
    ledger.close()


def test_the_view_of_an_audited_plan_has_the_clients_sources_only(view: PlanView) -> None:
    assert view.audit is not None
    assert (view.audit.share, view.audit.metric, view.audit.reference) == (SHARE, "top1", "audit.classify")
    assert (set(view.source_outputs), view.sinks) == ({"x"}, ("classify",))
    assert set(view.all_source_outputs) == {"x", "audit.x"}
    assert view.figures.rate_per_s == RATE_PER_S
    assert view.path_length("audit.x", "audit.classify") == 0
    assert view.tier_of("audit.x", 0) == "edge"
