"""The agent's metrics, read from a worker whose runs take exact times."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from jellybean.serving import open_authority
from jellybean.serving.gateway.plans.stated_metrics import StatedMetrics
from jellybean_agent import (
    CertificateFolder,
    Identity,
    PermanentError,
    PlanViewError,
    Role,
    certificate_metrics,
    metrics_text,
    serve_metrics,
)
from jellybean_agent.process.metrics import AgentCollector
from jellybean_solver import Link
from tests.support.ports import free_port
from tests.support.tiny_models import make_plan
from tests.unit.agent.worker.timed_worker import Worker, with_worker

HASH = "0" * 64
LABELS = 'operator="add",variant="only",worker="edge-1"'


def figures(text: bytes) -> dict[str, float]:
    """Name and labels -> value."""
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def collector(worker: Worker) -> AgentCollector:
    return AgentCollector(worker.view, worker.worker, worker.driver.counters, lambda: worker.driver)


def test_requests_runs_failures_and_bytes_are_counted_by_operator(tmp_path: Path) -> None:
    operators = {"add": (["x"], HASH), "last": (["add"], HASH)}
    routes = [(1.0, {"add": "edge-1", "last": "cloud-1"})]
    link = Link("edge", "cloud", price_usd_per_gib=2.0**30, bandwidth_bytes_per_s=1e9, latency_s=0.0)
    document = make_plan(tmp_path, operators, routes, sources={"x": "edge"}, batch=2, links=(link,))

    async def test(worker: Worker) -> None:
        for number in range(6):
            worker.receive(f"r{number}", number, "add")
        await asyncio.sleep(1.5)
        found = figures(collector(worker).text())
        assert found[f"jellybean_requests_total{{{LABELS}}}"] == 2
        assert found[f"jellybean_queue{{{LABELS}}}"] == 2
        assert found[f"jellybean_busy_seconds_total{{{LABELS}}}"] == pytest.approx(
            0.5 + worker.driver.counters.busy_s["add"]
        )
        worker.sessions["add"].fault = PermanentError("no")
        await asyncio.sleep(1.0)
        worker.sessions["add"].fault = None
        await asyncio.sleep(4.0)
        worker.driver.begin_call("add", worker.sessions["add"].example, lambda _: None)
        await asyncio.sleep(1.1)
        worker.driver.counters.expired[""] = 3
        worker.receive("r9", 1, "add", sender="cloud-1")
        text = collector(worker).text()
        found = figures(text)
        accepted, refused = StatedMetrics(worker.view, worker.worker).checked(text, 0.0, 0.0)
        assert (figures(accepted), refused) == (found, {}), "a gateway takes all of it"
        assert found['jellybean_refused_claims_total{sender="cloud-1",worker="edge-1"}'] == 1
        # The requests of the batch that failed were run again, each alone, without the fault.
        assert found[f"jellybean_requests_total{{{LABELS}}}"] == 6
        assert found[f"jellybean_failures_total{{{LABELS}}}"] == 0
        assert found[f"jellybean_failed_batches_total{{{LABELS}}}"] == 1
        assert found[f'jellybean_runs_total{{batch="2",{LABELS}}}'] == worker.driver.counters.runs["add"][2]
        asked = 'jellybean_asked_total{operator="add",outcome="%s",variant="only",worker="edge-1"}'
        assert (found[asked % "completed"], found[asked % "failed"]) == (1, 0)
        assert found['jellybean_expired_total{operator="",worker="edge-1"}'] == 3
        crossed = 'operator="add",tier="edge",to_tier="cloud",variant="only",worker="edge-1"'
        assert found[f"jellybean_link_bytes_total{{{crossed}}}"] == 8 * 6
        assert found[f"jellybean_network_cost_usd_total{{{crossed}}}"] == 8 * 6
        assert found['jellybean_device{device="cpu",worker="edge-1"}'] == 1
        assert not any(name.startswith("jellybean_late_seconds") for name in found), "no device is emulated"

    with_worker(document, "edge-1", tmp_path, test)


def test_a_workers_price_is_split_by_planned_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("jellybean_agent.process.metrics.time.monotonic", lambda: now_s[0])
    operators = {"add": (["x"], HASH), "last": (["add"], HASH)}
    document = make_plan(tmp_path, operators, [(1.0, dict.fromkeys(operators, "edge-1"))], sources={"x": "edge"})

    async def test(worker: Worker) -> None:
        it = collector(worker)
        now_s[0] += 1800.0
        found = figures(it.text())
        price = worker.worker.price_usd_per_h
        loads = worker.worker.loads
        for name in operators:
            labels = LABELS.replace("add", name)
            share = loads[name] / sum(loads.values())
            assert found[f"jellybean_planned_load{{{labels}}}"] == loads[name]
            assert found[f"jellybean_price_usd_per_h{{{labels}}}"] == pytest.approx(share * price)
            assert found[f"jellybean_cost_usd_total{{{labels}}}"] == pytest.approx(share * price / 2)
        assert found['jellybean_started_timestamp_seconds{worker="edge-1"}'] > 1.7e9
        since = found['jellybean_counted_since_timestamp_seconds{worker="edge-1"}']
        assert since == pytest.approx(worker.driver.counters.since_unix_s)

    with_worker(document, "edge-1", tmp_path, test)


def test_without_a_driver_the_plan_alone_is_told(tmp_path: Path) -> None:
    document = make_plan(tmp_path, {"add": (["x"], HASH)}, [(1.0, {"add": "edge-1"})], sources={"x": "edge"})

    async def test(worker: Worker) -> None:
        it = AgentCollector(worker.view, worker.worker, worker.driver.counters, lambda: None)
        found = figures(it.text())
        assert f"jellybean_price_usd_per_h{{{LABELS}}}" in found
        assert f"jellybean_requests_total{{{LABELS}}}" not in found

    with_worker(document, "edge-1", tmp_path, test)


def test_a_busy_counter_never_decreases(tmp_path: Path) -> None:
    document = make_plan(tmp_path, {"add": (["x"], HASH)}, [(1.0, {"add": "edge-1"})], sources={"x": "edge"})

    async def test(worker: Worker) -> None:
        it = collector(worker)
        worker.driver.counters.busy_s["add"] = 5.0
        assert figures(it.text())[f"jellybean_busy_seconds_total{{{LABELS}}}"] == 5.0
        worker.driver.counters.busy_s["add"] = 4.0
        assert figures(it.text())[f"jellybean_busy_seconds_total{{{LABELS}}}"] == 5.0

    with_worker(document, "edge-1", tmp_path, test)


def test_the_certificates_end_is_told(tmp_path: Path) -> None:
    open_authority(tmp_path / "ca").equip(tmp_path / "a", Identity("w", Role.AGENT, "a"), life_s=3600.0)
    folder = CertificateFolder(tmp_path / "a")
    (expires, lifetime) = certificate_metrics("me", folder)
    assert [(m.name, m.samples[0].labels, m.samples[0].value) for m in (expires, lifetime)] == [
        ("jellybean_certificate_expires_timestamp_seconds", {"process": "me"}, folder.current().expires_unix_s),
        ("jellybean_certificate_lifetime_seconds", {"process": "me"}, folder.current().lifetime_s),
    ]
    assert list(certificate_metrics("me", None)) == []


class One(Collector):
    def collect(self) -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily("one", "One.", value=1.0)]


def test_metrics_are_served_until_they_are_stopped() -> None:
    assert metrics_text(One()).decode().splitlines()[-1] == "one 1.0"
    assert serve_metrics(("127.0.0.1", 0), One()) is None
    port = free_port()
    stop = serve_metrics(("127.0.0.1", port), One())
    assert stop is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"one 1.0" in answer.read()
    with pytest.raises(PlanViewError, match=re.escape(f"cannot serve metrics on 127.0.0.1:{port}: the address is")):
        serve_metrics(("127.0.0.1", port), One())
    stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
