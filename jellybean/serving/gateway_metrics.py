"""Prometheus metrics of a gateway, read at scrape time: serving pays nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jellybean.serving.gateway import Gateway


class GatewayCollector(Collector):
    """Requests by what became of them, retries, workers left out, and what is in hand."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        status = self._gateway.status()
        for name, text, value in (
            ("answered", "Requests answered.", status.answered),
            ("failed", "Requests that failed or were refused.", status.failed),
            ("refused", "Refused: too many in hand.", status.refused),
            ("expired", "Failed: no answer in time.", status.expired),
            ("retries", "Attempts after a request's first.", status.retried),
            ("left_out", "Times that a worker was left out.", status.left_out),
        ):
            yield CounterMetricFamily(f"jellybean_gateway_{name}", text, value=value)
        yield GaugeMetricFamily("jellybean_gateway_in_hand", "Requests in hand.", value=status.requests_in_hand)
        yield GaugeMetricFamily("jellybean_gateway_waiting", "Of these, for a route.", value=status.waiting)
        yield GaugeMetricFamily("jellybean_gateway_kept", "On disk, to be answered eventually.", value=status.kept)
        yield GaugeMetricFamily("jellybean_gateway_kept_bytes", "Bytes of the spool.", value=status.kept_bytes)
        workers = GaugeMetricFamily("jellybean_gateway_workers", "Workers by state.", labels=("state",))
        states = Counter(status.workers.values())
        for state in ("starting", "ready", "draining", "gone"):
            workers.add_metric((state,), states[state])
        yield workers
