"""Prometheus metrics of a gateway, read at scrape time: serving pays nothing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from jellybean.serving.gateway.gateway import Gateway
from jellybean.serving.gateway.in_flight import LATENCY_BOUNDS_S
from jellybean_agent import link_byte_metrics


class GatewayCollector(Collector):
    """Requests by what became of them, latencies, retries, workers left out, what is in hand; and its workers' own."""

    def __init__(self, gateway: Gateway, workers: Callable[[], Sequence[bytes]] = tuple) -> None:
        """`workers`: what each of them tells, in Prometheus' text format; none where each is asked by itself."""
        self._gateway, self._workers = gateway, workers

    def collect(self) -> Iterator[Metric]:
        status = self._gateway.status()
        for name, text, value in (
            ("answered", "Requests answered.", status.answered),
            ("failed", "Requests that failed or were refused.", status.failed),
            ("refused", "Refused: too many in hand.", status.refused),
            ("expired", "Failed: no answer in time.", status.expired),
            ("wrong", "Failed: what the client asked for was wrong, or it went away.", self._gateway.figures.wrong),
            ("retries", "Attempts after a request's first.", status.retried),
            ("hedges", "Attempts beside a slow first.", status.hedged),
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
        yield self._latency()
        crossed = list(self._gateway.crossed.items())
        yield from link_byte_metrics("jellybean_gateway", ("source", "tier", "to_tier"), crossed, self._gateway.view)
        texts = self._workers()  # first: the links' cost is as new as what they tell
        cost = CounterMetricFamily("jellybean_gateway_cost_usd", "Of all plans since the start.", labels=("of",))
        cost.add_metric(("workers",), self._gateway.spent.workers_usd)
        cost.add_metric(("links",), self._gateway.spent.links_usd)
        yield cost
        yield from together(texts)

    def _latency(self) -> Metric:
        figures = self._gateway.figures
        bounds = [*map(str, LATENCY_BOUNDS_S), "+Inf"]
        buckets = list(zip(bounds, itertools.accumulate(figures.latencies), strict=True))
        text = "From the call to its answer."
        return HistogramMetricFamily("jellybean_gateway_latency_seconds", text, buckets, figures.answered_s)


def together(texts: Sequence[bytes]) -> Iterator[Metric]:
    """The metrics of several processes, each family once."""
    found: dict[str, Metric] = {}
    for text in texts:
        for family in text_string_to_metric_families(text.decode()):
            found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            found[family.name].samples += family.samples
    yield from found.values()
