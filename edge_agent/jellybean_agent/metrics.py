"""Prometheus metrics of an agent, on the loopback unless told otherwise.

They are read from the driver's figures at scrape time: serving pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jellybean_agent.driver import Driver
from jellybean_agent.plan_view import PlanView, WorkerView

_LABELS = ("operator", "variant", "worker")


class AgentCollector(Collector):
    """Requests, runs, failures and busy seconds by operator, variant and worker; the worker's queue."""

    def __init__(self, view: PlanView, worker: WorkerView, driver: Callable[[], Driver | None]) -> None:
        self._view, self._worker, self._driver = view, worker, driver

    def collect(self) -> Iterator[Metric]:
        driver = self._driver()
        requests = CounterMetricFamily("jellybean_requests", "Requests completed.", labels=_LABELS)
        runs = CounterMetricFamily("jellybean_runs", "Runs by requests in one.", labels=(*_LABELS, "batch"))
        failures = CounterMetricFamily("jellybean_failures", "Requests that failed.", labels=_LABELS)
        broken = CounterMetricFamily("jellybean_failed_batches", "Batches that ran again one by one.", labels=_LABELS)
        asked = CounterMetricFamily("jellybean_asked", "Requests for one operator alone.", labels=(*_LABELS, "outcome"))
        busy = CounterMetricFamily("jellybean_busy_seconds", "Time spent on runs.", labels=_LABELS)
        late = CounterMetricFamily("jellybean_late_seconds", "Longer than the emulated device takes.", labels=_LABELS)
        expired = CounterMetricFamily("jellybean_expired", "Dropped as too late.", labels=("operator", "worker"))
        queue = GaugeMetricFamily("jellybean_queue", "Requests that wait.", labels=("worker",))
        if driver is not None:
            for name in self._worker.operators:
                labels = (name, self._view.operators[name].variant, self._worker.name)
                requests.add_metric(labels, driver.figures.completed[name])
                for size, count in sorted(driver.figures.runs[name].items()):
                    runs.add_metric((*labels, str(size)), count)
                failures.add_metric(labels, driver.figures.failed[name])
                broken.add_metric(labels, driver.figures.broken[name])
                asked.add_metric((*labels, "completed"), driver.figures.asked[name])
                asked.add_metric((*labels, "failed"), driver.figures.asked_failed[name])
                busy.add_metric(labels, driver.figures.busy_s[name])
                if self._worker.device_s is not None:
                    late.add_metric(labels, driver.figures.late_s[name])
            for name, count in driver.figures.expired.items():
                expired.add_metric((name, self._worker.name), count)
            queue.add_metric((self._worker.name,), driver.queued)
        yield from (requests, runs, failures, broken, asked, busy, late, expired, queue)


def serve_metrics(at: tuple[str, int], collector: Collector) -> Callable[[], None] | None:
    """Serve /metrics `at` host and port; a function that stops it. None, and nothing served, for port 0."""
    host, port = at
    if port == 0:
        return None
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(port, addr=host, registry=registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
