"""Prometheus metrics of what a process accepts and refuses."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from jellybean_agent.admission.process import Admission


def admission_metrics(process: str, admission: Admission) -> Iterator[Metric]:
    """Bytes and connections that are held, their limits, and what was refused by port and reason."""
    held_bytes, connections = admission.bytes, admission.connections
    for name, text, value in (
        ("jellybean_admission_bytes", "Bytes of requests and answers that are kept.", held_bytes.held),
        ("jellybean_admission_bytes_limit", "The most that they may be.", held_bytes.total),
        ("jellybean_admission_connections", "Connections of others that are open.", connections.held),
        ("jellybean_admission_connections_limit", "The most that they may be.", connections.total),
    ):
        gauge = GaugeMetricFamily(name, text, labels=("process",))
        gauge.add_metric((process,), value)
        yield gauge
    refused = CounterMetricFamily(
        "jellybean_admission_refused",
        "Connections and calls that were refused, or ended for others.",
        labels=("process", "port", "reason"),
    )
    for (port, reason), count in sorted(admission.refused.copy().items()):
        refused.add_metric((process, port, reason), count)
    yield refused
