"""What a gateway writes down: counters that outlive it, values, answers, and traces of its requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jellybean.ledger import (
    ANSWERED_US,
    COLUMNS,
    KINDS,
    LOST,
    MAX_ANSWER_BYTES,
    RECEIVED,
    Figure,
    KeptAnswer,
    Port,
    RequestKey,
    Sent,
    SentKey,
    ValueLine,
)
from jellybean.serving import OutcomeKind, outcome_text
from jellybean.serving.gateway.accounting.answer_log import AnswerLog, site_name
from jellybean.serving.gateway.accounting.recorder import billed_plan
from jellybean.serving.gateway.accounting.serving_log import ServingLog, client_name
from jellybean.serving.gateway.accounting.value_log import ValueLog
from jellybean.serving.gateway.requests.admission import RequestAdmission
from jellybean.serving.gateway.requests.request import Attempt
from jellybean.serving.gateway.spans import SpanTracer
from jellybean.serving.outcomes import Outcome
from jellybean.serving.spool.delivery import Key
from jellybean_agent import Identity, LiveCounters, PlanView, Role, SpanFactory
from jellybean_agent.telemetry import spans as spans_module
from jellybean_protos.agent.v1 import agent_pb2
from tests.support.scripted_workers import hold, scale_view, served, tensor

ANN, BOB = (Identity("tiny", Role.CLIENT, name).uri for name in ("ann", "bob"))
INPUTS = {"x": tensor(1, 2, 3, 4)}
Kind = OutcomeKind


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    return scale_view(tmp_path_factory.mktemp("plan"), "edge-1", "cloud-1")


def run(test: Awaitable[None]) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


# -- counters ---------------------------------------------------------------------------------------------------------


def log_at(path: Path) -> ServingLog:
    return ServingLog(LiveCounters(path, COLUMNS), "tiny")


def counts(log: ServingLog) -> dict[str, tuple[int, ...]]:
    """Per client: how many were received, answered, late, lost, and microseconds of the answers."""
    columns = (RECEIVED, KINDS["answered"], KINDS["late"], KINDS[LOST], ANSWERED_US)
    return {
        key.client: tuple(row[column] for column in columns)
        for key, row in log.requests().items()
        if key == RequestKey("tiny", key.client)
    }


def test_requests_are_counted_by_client(tmp_path: Path) -> None:
    log = log_at(tmp_path / "live")
    for client in (ANN, ANN, BOB, ""):
        log.received(client)
    log.ended(Kind.ANSWERED, 0.25, ANN)
    log.ended(Kind.LATE, 0.5, BOB)
    log.ended(Kind.ANSWERED, 0.001, "")
    log.sent("plan", "x", ("edge", "cloud"), 100)
    log.sent("plan", "x", ("edge", "cloud"), 20)
    assert counts(log) == {"ann": (2, 1, 0, 0, 250_000), "bob": (1, 0, 1, 0, 0), "": (1, 1, 0, 0, 1_000)}
    assert log.bytes_by_source() == {SentKey("plan", "x", "", "", "edge", "cloud"): Sent(120.0, log.mark)}
    log.close()


def test_a_killed_gateway_has_lost_what_does_not_wait_on_disk(tmp_path: Path) -> None:
    log = log_at(tmp_path / "live")
    for client in (ANN, ANN, ANN, BOB):
        log.received(client)
    log.ended(Kind.ANSWERED, 0.1, ANN)
    log.close()
    log = log_at(tmp_path / "live")
    assert log.lose({ANN: 1, BOB: 3, "": 2}) == 1
    assert counts(log) == {"ann": (3, 1, 0, 1, 100_000), "bob": (3, 0, 0, 0, 0), "": (2, 0, 0, 0, 0)}
    log.close()
    assert (tmp_path / "live").exists()
    log = log_at(tmp_path / "live")
    assert log.lose({ANN: 1, BOB: 3, "": 2}) == 0
    log.close(is_written=True)
    assert not (tmp_path / "live").exists()


def test_the_file_of_counters_is_read_by_the_next_version(tmp_path: Path) -> None:
    """What a row is about has a name that does not change."""
    counters = LiveCounters(tmp_path / "live", COLUMNS)
    counters.row(("client", "tiny", ANN))[RECEIVED] += 3
    counters.row(("source", "plan", "x", "edge", "cloud"))[0] += 7
    counters.close()
    log = log_at(tmp_path / "live")
    assert log.lose({}) == 3
    assert counts(log) == {"ann": (3, 0, 0, 3, 0)}
    assert log.bytes_by_source() == {SentKey("plan", "x", "", "", "edge", "cloud"): Sent(7.0, log.mark)}
    log.close()


def test_the_name_of_a_client() -> None:
    of_one = Identity("tiny/shop", Role.CLIENT, "ann").uri
    assert [client_name(uri) for uri in (ANN, of_one, Identity("tiny", Role.GATEWAY).uri, "", "nobody")] == [
        "ann",
        "shop/ann",
        "gateway",
        "",
        "",
    ]


def test_what_a_plan_pays_for(view: PlanView) -> None:
    plan = billed_plan(view)
    assert (plan.hash, plan.workflow) == (view.hash, "tiny")
    workers = {worker.name: worker for worker in plan.workers}
    assert {name: (worker.tier, worker.site, worker.usd_per_h) for name, worker in workers.items()} == {
        "edge-1": ("edge", "", 0.1),
        "cloud-1": ("cloud", "", 0.1),
    }
    assert workers["edge-1"].variants == {"double": "only"}


def test_a_worker_of_a_site_is_of_the_sites_tier(tmp_path: Path) -> None:
    """Of several identical sites, each of which is a tier of its own in the view."""
    view = scale_view(tmp_path, "edge-1", sites={"edge": 3})
    workers = {worker.name: (worker.site, worker.tier) for worker in billed_plan(view).workers}
    assert len(workers) == 3
    for name, (site, tier) in workers.items():
        assert (site, tier) == (name.rpartition("/")[0], "edge")
        assert site
    assert [site_name(view, route) for route in range(3)] == [site for site, _ in workers.values()]


# -- answers and values -----------------------------------------------------------------------------------------------


def test_small_answers_with_an_id_are_kept(view: PlanView) -> None:
    async def test() -> None:
        async with served(view) as found:
            log, attempts = AnswerLog(), list[Attempt | None]()
            found.gateway.on_answer = lambda key, attempt, outputs: attempts.append(attempt)
            assert (await found.gateway.infer(INPUTS, 5.0, "a"))[0] is None
            (attempt,) = attempts
            assert log.is_empty
            large = {"double": tensor(*[0.0] * (MAX_ANSWER_BYTES // 4))}
            log.keep(Key(ANN, "most"), attempt, large)
            log.keep(Key(ANN, "b" * 256), attempt, INPUTS)
            log.keep(Key(ANN, "more"), attempt, {**large, **INPUTS})
            log.keep(Key(ANN, "b" * 257), attempt, INPUTS)
            log.keep(Key(ANN, "a\0"), attempt, INPUTS)
            log.keep(Key(ANN, "none"), None, INPUTS)
            assert not log.is_empty
            kept = log.take()
            assert [answer.id for answer in kept] == ["most", "b" * 256]
            first: KeptAnswer = kept[0]
            assert (first.client, first.workflow, first.plan) == ("ann", "tiny", view.hash)
            assert abs(first.at_s - time.time()) < 60
            assert log.is_empty
            log.keep(Key(BOB, "later"), attempt, INPUTS)
            log.give_back(kept)
            assert [answer.id for answer in log.take()] == ["most", "b" * 256, "later"]

    run(test())


def test_values_are_looked_at_now_and_then(view: PlanView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    log = ValueLog()
    log.see(view, Port.SOURCE, {"x": tensor(1, 2, 3, 6), "y": tensor(5)})
    log.see(view, Port.SOURCE, {"x": tensor(9, 9, 9, 9)})  # a moment later
    log.see(view, Port.ANSWER, {"x": tensor(7), "broken": agent_pb2.Tensor(dtype="float32", shape=[9])})
    lines = {(line.port, line.name, line.figure): line for line in log.take()}
    assert {key[:2] for key in lines} == {(Port.SOURCE, "x"), (Port.SOURCE, "y"), (Port.ANSWER, "x")}
    assert all(line.requests == 1 and line.deviation == 0.0 for line in lines.values())
    mean = lines[Port.SOURCE, "x", Figure.MEAN]
    assert (mean.mean, mean.workflow, mean.plan) == (3.0, "tiny", view.hash)
    assert log.take() == []
    given: list[ValueLine] = list(lines.values())
    log.give_back(given)
    assert log.take() == given


def test_the_spread_of_values_is_over_requests(view: PlanView, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    log = ValueLog()
    for value in (1.0, 3.0):
        now_s[0] += 1.0
        log.see(view, Port.SOURCE, {"x": tensor(value, value)})
    mean = next(line for line in log.take() if line.figure is Figure.MEAN)
    assert (mean.requests, mean.mean, mean.deviation) == (2, 2.0, 1.0)


def test_the_bytes_in_flight_have_a_limit() -> None:
    """The first request is admitted whatever its size."""
    admission, most = RequestAdmission(16), 2**28
    one, other = Key("alice", ""), Key("bob", "")
    assert admission.refusal(one, 2 * most, 0) is None
    admission.add(one, most - 1000)
    assert admission.refusal(other, 800, 1) is None
    refused = admission.refusal(other, 1001, 1)
    assert refused is not None
    assert refused.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    told = (
        f"{most - 1000} bytes of inputs are in flight, 0 of this client: 1001 more would be above its share of {most}"
    )
    assert refused.reason == f"overloaded: {told}"
    admission.remove(one, most - 1000, answered=True)
    assert admission.refusal(one, most // 8 * 7, 1) is None


def test_one_client_leaves_requests_and_bytes_to_the_others() -> None:
    admission = RequestAdmission(16)
    crowd, other = Key("mallory", ""), Key("alice", "")
    sent = 0
    while admission.refusal(crowd, 1, sent) is None:
        admission.add(crowd, 1)
        sent += 1
    assert sent == 14
    refused = admission.refusal(crowd, 1, sent)
    assert refused is not None
    assert refused.reason == "overloaded: 14 of 14 requests in flight are of this client, which is its limit"
    assert admission.refusal(other, 1, sent) is None
    admission.remove(crowd, 1, answered=True)
    assert admission.refusal(crowd, 1, sent - 1) is None


def test_outcomes_in_words() -> None:
    outcomes = {Kind.ANSWERED: 350, Kind.LATE: 4, Kind.SHED: 0}
    assert outcome_text(outcomes) == "350 answered, 4 late"
    assert outcome_text(outcomes, answered=False) == "4 late"


# -- traces -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(spans_module, "_exporter", lambda environment: exporter)
    yield exporter


def test_a_request_has_a_span_with_its_attempts(view: PlanView, exported: InMemorySpanExporter) -> None:
    spans = SpanFactory("jellybean-gateway", "gateway", "tiny", {}).start()

    async def test() -> None:
        async with served(view, tracer=SpanTracer(spans)) as found:
            assert (await found.gateway.infer(INPUTS, 5.0, "mine"))[0] is None
            (message,) = found.received
            assert message.trace.request_id == "mine"
            assert message.trace.parent.startswith("00-")
            for worker in found.workers.values():
                worker.behaviour = hold
            late: Outcome | None = (await found.gateway.infer(INPUTS, 0.05))[0]
            assert late is not None

    run(test())
    spans.close()
    answered, failed = (span for span in exported.get_finished_spans() if span.name == "request")
    assert answered.attributes is not None
    assert answered.attributes["jellybean.request_id"] == "mine"
    assert [event.name for event in answered.events] == ["attempt"]
    assert set(answered.events[0].attributes or {}) == {"jellybean.key", "jellybean.route"}
    assert failed.attributes is not None
    assert failed.attributes["rpc.grpc.status_code"] == 4
    assert failed.attributes["jellybean.request_id"] == f"{failed.get_span_context().trace_id:032x}"
    assert not failed.status.is_ok
    assert str(failed.status.description).startswith("DEADLINE_EXCEEDED: no answer of double")
