"""All ways of summing gradients side by side: counted traffic and simulated time, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from jellybean.display import formats
from jellybean_solver.pipeline import WAYS, Link, Traffic, count_traffic, make_all_reduce


@dataclass(frozen=True)
class Comparison:
    """Every way's traffic for one sum of `size_bytes` over `workers`, all with the same link each."""

    workers: int
    size_bytes: float
    link: Link
    traffic: Mapping[str, Traffic]

    def seconds(self, name: str) -> float:
        """Simulated duration of a way."""
        return self.traffic[name].seconds(self.link)

    def busiest_name(self, name: str) -> str:
        """Whose link is the bottleneck of a way."""
        if self.workers == 1 and name != "parameter-server":
            return "none"
        traffic = self.traffic[name]
        if traffic.busiest >= self.workers:
            return "server"
        loads = [traffic.duplex.load(*both) for both in zip(traffic.sent, traffic.received, strict=True)]
        equal = sum(load == traffic.busiest_bytes for load in loads[: self.workers])
        return "every worker" if equal == self.workers else f"worker {traffic.busiest}"


def compare_ways(workers: int, size_bytes: float, link: Link) -> Comparison:
    """Generate every way for these workers and count its traffic."""
    traffic = {name: count_traffic(make_all_reduce(name, workers), size_bytes, link.duplex) for name in WAYS}
    return Comparison(workers, size_bytes, link, traffic)


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values; docs/pipelines.md lists the keys."""
    link = comparison.link
    return {
        "workers": comparison.workers,
        "bytes": comparison.size_bytes,
        "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        "latency_s": link.latency_s,
        "duplex": link.duplex.value,
        "ways": [
            {
                "way": name,
                "total_bytes": traffic.total_bytes,
                "busiest": comparison.busiest_name(name),
                "busiest_bytes": traffic.busiest_bytes,
                "busiest_round_bytes": max(traffic.round_bytes, default=0.0),
                "rounds": traffic.rounds,
                "time_s": comparison.seconds(name),
            }
            for name, traffic in comparison.traffic.items()
        ],
    }


def comparison_table(comparison: Comparison) -> Table:
    """Table with one row per way."""
    record = comparison_json(comparison)
    workers = "1 worker" if comparison.workers == 1 else f"{comparison.workers} workers"
    title = (
        f"sum of {formats.decimal_size(comparison.size_bytes)} over {workers}, {record['duplex']}-duplex links of "
        f"{formats.byte_rate(comparison.link.bandwidth_bytes_per_s)}, latency {formats.duration(record['latency_s'])}"
    )
    table = Table("way", "total traffic", "busiest link", "its bytes", "a round at most", "rounds", "time", title=title)
    table.title_justify = "left"
    for way in record["ways"]:
        table.add_row(
            way["way"],
            formats.decimal_size(way["total_bytes"]),
            way["busiest"],
            formats.decimal_size(way["busiest_bytes"]),
            formats.decimal_size(way["busiest_round_bytes"]),
            str(way["rounds"]),
            formats.duration(way["time_s"]),
        )
    return table
