"""Prometheus metrics of what a process accepts and refuses."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from jellybean_agent.admission.process import Admission


def admission_metrics(process: str, admission: Admission) -> Iterator[Metric]:
    """Bytes and connections that are held, their limits, and what was refused by port and reason."""
    for name, text, limit in (
        ("bytes", "Bytes of requests and answers that are kept.", admission.bytes),
        ("connections", "Connections of others that are open.", admission.connections),
    ):
        held = GaugeMetricFamily(f"jellybean_admission_{name}", text, labels=("process",))
        held.add_metric((process,), limit.held)
        most = GaugeMetricFamily(f"jellybean_admission_{name}_limit", "The most that it may be.", labels=("process",))
        most.add_metric((process,), limit.total)
        yield from (held, most)
    refused = CounterMetricFamily(
        "jellybean_admission_refused",
        "Connections and calls that were refused, or ended for others.",
        labels=("process", "port", "reason"),
    )
    for (port, reason), count in sorted(admission.refused.copy().items()):
        refused.add_metric((process, port, reason), count)
    yield refused
