"""Prometheus metrics of an agent.

They are read from the driver's counters at scrape time, so they cost nothing while serving.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jellybean_agent.admission.limits import ListeningPort
from jellybean_agent.admission.metrics import admission_metrics
from jellybean_agent.admission.process import Admission
from jellybean_agent.brain.plan_view import PlanView, WorkerView
from jellybean_agent.errors import PlanViewError, describe_error
from jellybean_agent.process.page_server import serve_pages
from jellybean_agent.security.certificates import CertificateFolder
from jellybean_agent.worker.counters import WorkerCounters
from jellybean_agent.worker.driver import Driver
from jellybean_protos.addresses import join_address

BYTES_PER_GIB = 2**30
_LABELS = ("operator", "variant", "worker")
_BYTES_LABELS = (*_LABELS, "tier", "to_tier")
_LINK_TEXTS = "Bytes of tensors sent to other tiers.", "What they cost."


@dataclass(frozen=True, slots=True)
class WorkerFamily:
    """A metric of a worker: its labels, and whether it only grows."""

    text: str
    labels: tuple[str, ...]
    is_counter: bool = False

    def empty(self, name: str) -> Any:
        """The family without a sample."""
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        return kind(name, self.text, labels=self.labels)


# All that a worker states, by name. A gateway passes nothing else on.
WORKER_FAMILIES: Mapping[str, WorkerFamily] = {
    "jellybean_requests": WorkerFamily("Requests completed.", _LABELS, True),
    "jellybean_runs": WorkerFamily("Runs by requests in one.", (*_LABELS, "batch"), True),
    "jellybean_failures": WorkerFamily("Requests that failed.", _LABELS, True),
    "jellybean_failed_batches": WorkerFamily("Batches that ran again one by one.", _LABELS, True),
    "jellybean_asked": WorkerFamily("Requests for one operator alone.", (*_LABELS, "outcome"), True),
    "jellybean_busy_seconds": WorkerFamily("Time spent on runs.", _LABELS, True),
    "jellybean_late_seconds": WorkerFamily("Longer than the emulated device takes.", _LABELS, True),
    "jellybean_expired": WorkerFamily("Dropped as too late.", ("operator", "worker"), True),
    "jellybean_queue": WorkerFamily("Requests that wait.", _LABELS),
    "jellybean_link_bytes": WorkerFamily(_LINK_TEXTS[0], _BYTES_LABELS, True),
    "jellybean_network_cost_usd": WorkerFamily(_LINK_TEXTS[1], _BYTES_LABELS, True),
    "jellybean_device": WorkerFamily("1: on which its models run.", ("worker", "device")),
    "jellybean_started_timestamp_seconds": WorkerFamily("When the process started.", ("worker",)),
    "jellybean_counted_since_timestamp_seconds": WorkerFamily("When its counters began.", ("worker",)),
    "jellybean_planned_load": WorkerFamily("Fraction of the time, by the plan.", _LABELS),
    "jellybean_cost_usd": WorkerFamily("Price of the time since its start.", _LABELS, True),
    "jellybean_price_usd_per_h": WorkerFamily("What it costs.", _LABELS),
    "jellybean_refused_claims": WorkerFamily("Messages without a right by the plan.", ("worker", "sender"), True),
    "jellybean_certificate_expires_timestamp_seconds": WorkerFamily(
        "When the process's own certificate expires.", ("process",)
    ),
    "jellybean_certificate_lifetime_seconds": WorkerFamily("From the begin of its validity to its end.", ("process",)),
}


def _family(name: str) -> Any:
    return WORKER_FAMILIES[f"jellybean_{name}"].empty(f"jellybean_{name}")


class AgentCollector(Collector):
    """Requests, runs, failures, busy seconds, queue, bytes and cost by operator, variant and worker."""

    def __init__(
        self,
        view: PlanView,
        worker: WorkerView,
        counters: WorkerCounters,
        driver: Callable[[], Driver | None],
        certificate: CertificateFolder | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission
        self._view, self._worker, self._driver, self._certificate = view, worker, driver, certificate
        self._counters = counters
        self._began_s, self._began_unix_s = time.monotonic(), time.time()
        self._busy_s: dict[str, float] = {}  # operator -> what was reported last; a counter never decreases

    def collect(self) -> Iterator[Metric]:
        driver = self._driver()
        if driver is not None:
            yield from self._of_runs(driver)
            yield from self._of_bytes(driver)
            device = _family("device")
            device.add_metric((self._worker.name, str(self._worker.device)), 1)
            yield device
            refused = _family("refused_claims")
            for sender, count in driver.claims.counts.items():
                refused.add_metric((self._worker.name, sender or "gateway"), count)
            yield refused
        for name, unix_s in (
            ("started_timestamp_seconds", self._began_unix_s),
            ("counted_since_timestamp_seconds", self._counters.since_unix_s),
        ):
            began = _family(name)
            began.add_metric((self._worker.name,), unix_s)
            yield began
        yield from self._of_the_plan()
        yield from certificate_metrics(self._worker.name, self._certificate)
        if self._admission is not None:
            yield from admission_metrics(self._worker.name, self._admission)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return metrics_text(self)

    def _labels(self, operator: str) -> tuple[str, str, str]:
        return operator, self._view.operators[operator].variant, self._worker.name

    def _of_runs(self, driver: Driver) -> Iterator[Metric]:
        names = ("requests", "runs", "failures", "failed_batches", "asked", "busy_seconds", "late_seconds", "expired")
        families = [_family(name) for name in (*names, "queue")]
        requests, runs, failures, broken, asked, busy, late, expired, queue = families
        waiting, counters = driver.queued_by_operator(), driver.counters
        for name, busy_s in driver.busy_s().items():  # with the run under way: a long run is not all of one window
            self._busy_s[name] = max(self._busy_s.get(name, 0.0), busy_s)  # its end may be counted as a bit earlier
        for name in self._worker.operators:
            labels = self._labels(name)
            requests.add_metric(labels, counters.completed[name])
            for size, count in sorted(counters.runs[name].items()):
                runs.add_metric((*labels, str(size)), count)
            failures.add_metric(labels, counters.failed[name])
            broken.add_metric(labels, counters.failed_batches[name])
            asked.add_metric((*labels, "completed"), counters.direct_calls[name])
            asked.add_metric((*labels, "failed"), counters.direct_calls_failed[name])
            busy.add_metric(labels, self._busy_s[name])
            if self._worker.device_s is not None:
                late.add_metric(labels, counters.late_s[name])
            queue.add_metric(labels, waiting[name])
        for name, count in counters.expired.items():
            expired.add_metric((name, self._worker.name), count)
        yield from families

    def _of_bytes(self, driver: Driver) -> Iterator[Metric]:
        crossed = [
            ((*self._labels(name), self._worker.tier, to), n) for (name, to), n in driver.counters.link_bytes.items()
        ]
        yield from link_byte_metrics("jellybean", _BYTES_LABELS, crossed, self._view)

    def _of_the_plan(self) -> Iterator[Metric]:
        """Planned load, price and cost. The worker's cost is split between its operators by planned load, so that each
        operator's cost never decreases.
        """
        planned, cost, price = map(_family, ("planned_load", "cost_usd", "price_usd_per_h"))
        hours = (time.monotonic() - self._began_s) / 3600
        loads = self._worker.loads
        total = sum(loads.values())
        for name in self._worker.operators:
            share = loads[name] / total if total else 1 / len(self._worker.operators)
            planned.add_metric(self._labels(name), loads[name])
            price.add_metric(self._labels(name), share * self._worker.price_usd_per_h)
            cost.add_metric(self._labels(name), share * self._worker.price_usd_per_h * hours)
        yield from (planned, price, cost)


def certificate_metrics(process: str, certificate: CertificateFolder | None) -> Iterator[Metric]:
    """When the certificate of a process expires, and its lifetime; nothing without a certificate."""
    if certificate is None:
        return
    found = certificate.current()
    for name, value in (
        ("expires_timestamp_seconds", found.expires_unix_s),
        ("lifetime_seconds", found.lifetime_s),
    ):
        metric = _family(f"certificate_{name}")
        metric.add_metric((process,), value)
        yield metric


def link_byte_metrics(
    prefix: str, labels: Sequence[str], crossed: Sequence[tuple[Sequence[str], float]], view: PlanView
) -> Iterator[Metric]:
    """Counters of bytes sent to other tiers, and of their cost. The last two labels are the two tiers."""
    prices = {(link.upstream_tier, link.downstream_tier): link.price_usd_per_gib for link in view.links}
    sent = CounterMetricFamily(f"{prefix}_link_bytes", _LINK_TEXTS[0], labels=labels)
    cost = CounterMetricFamily(f"{prefix}_network_cost_usd", _LINK_TEXTS[1], labels=labels)
    for values, count in sorted(crossed):
        sent.add_metric(values, count)
        cost.add_metric(values, count / BYTES_PER_GIB * prices.get((values[-2], values[-1]), 0.0))
    yield from (sent, cost)


def metrics_text(collector: Collector) -> bytes:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)


def serve_metrics(
    at: tuple[str, int], collector: Collector, refused: Counter[tuple[ListeningPort, str]] | None = None
) -> Callable[[], None] | None:
    """Serve /metrics `at` host and port; returns a function that stops it. Port 0: serve nothing, and return None.

    PlanViewError if the port is in use or not allowed. `refused`: counts the connections that were ended.
    """
    host, port = at
    if port == 0:
        return None
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        return serve_pages(at, make_wsgi_app(registry), ListeningPort.METRICS, refused)
    except OSError as error:
        raise PlanViewError(f"cannot serve metrics on {join_address(host, port)}: {describe_error(error)}") from error
