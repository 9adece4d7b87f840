"""A Grafana dashboard of a run, on the metrics of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_RATE = "[$__rate_interval]"
_WIDTH, _HEIGHT = 12, 8  # Grafana's grid has 24 columns
Query = tuple[str, str]  # PromQL, legend

STATS: tuple[tuple[str, str, str], ...] = (  # title, unit, PromQL
    (
        "Cost so far",
        "currencyUSD",
        "sum(jellybean_gateway_cost_usd_total)"
        " or sum(jellybean_cost_usd_total) + (sum(jellybean_network_cost_usd_total) or vector(0))",
    ),
    (
        "USD per hour",
        "currencyUSD",
        f"sum(jellybean_price_usd_per_h) + 3600 * ((sum(rate(jellybean_network_cost_usd_total{_RATE})) or vector(0))"
        f" + (sum(rate(jellybean_gateway_network_cost_usd_total{_RATE})) or vector(0)))",
    ),
    ("Answered", "reqps", f"sum(rate(jellybean_gateway_answered_total{_RATE}))"),
    ("Workers ready", "short", 'sum(jellybean_gateway_workers{state="ready"})'),
)
GRAPHS: tuple[tuple[str, str, tuple[Query, ...]], ...] = (  # title, unit, queries
    (
        "Requests",
        "reqps",
        tuple(
            (f"sum(rate(jellybean_gateway_{name}_total{_RATE}))", name)
            for name in ("answered", "failed", "refused", "expired", "retries", "hedges")
        ),
    ),
    (
        "Latency",
        "s",
        tuple(
            (
                f"histogram_quantile({share}, sum by (le) (rate(jellybean_gateway_latency_seconds_bucket{_RATE})))",
                f"p{100 * share:.0f}",
            )
            for share in (0.5, 0.9, 0.99)
        ),
    ),
    (
        "Workers: busy, measured and planned",
        "percentunit",
        (
            (f"sum by (worker) (rate(jellybean_busy_seconds_total{_RATE}))", "{{worker}}"),
            ("sum by (worker) (jellybean_planned_load)", "{{worker}} planned"),
        ),
    ),
    ("Queues", "short", (("sum by (operator, worker) (jellybean_queue)", "{{operator}} on {{worker}}"),)),
    (
        "Requests by operator",
        "reqps",
        ((f"sum by (operator, variant) (rate(jellybean_requests_total{_RATE}))", "{{operator}}/{{variant}}"),),
    ),
    (
        "Compute per run",
        "s",
        (
            (
                f"sum by (operator, variant) (rate(jellybean_busy_seconds_total{_RATE}))"
                f" / sum by (operator, variant) (rate(jellybean_runs_total{_RATE}))",
                "{{operator}}/{{variant}}",
            ),
        ),
    ),
    (
        "Requests per run",
        "short",
        (
            (
                f"sum by (operator) (rate(jellybean_requests_total{_RATE}))"
                f" / sum by (operator) (rate(jellybean_runs_total{_RATE}))",
                "{{operator}}",
            ),
        ),
    ),
    (
        "Bytes between tiers",
        "Bps",
        (
            (f"sum by (tier, to_tier) (rate(jellybean_link_bytes_total{_RATE}))", "{{tier}} to {{to_tier}}"),
            (
                f"sum by (source, tier, to_tier) (rate(jellybean_gateway_link_bytes_total{_RATE}))",
                "{{source}}: {{tier}} to {{to_tier}}",
            ),
        ),
    ),
    (
        "Cost so far by operator",
        "currencyUSD",
        (
            ("sum by (operator, variant) (jellybean_cost_usd_total)", "{{operator}}/{{variant}} compute"),
            ("sum by (operator, variant) (jellybean_network_cost_usd_total)", "{{operator}}/{{variant}} network"),
        ),
    ),
    (
        "Failures",
        "reqps",
        (
            (f"sum by (operator, worker) (rate(jellybean_failures_total{_RATE}))", "{{operator}} on {{worker}}"),
            (
                f"sum by (operator, worker) (rate(jellybean_expired_total{_RATE}))",
                "{{operator}} on {{worker}}, too late",
            ),
        ),
    ),
    (
        "In flight",
        "short",
        (
            ("sum(jellybean_gateway_in_hand)", "in flight"),
            ("sum(jellybean_gateway_waiting)", "wait for a route"),
            ("sum(jellybean_gateway_kept)", "kept on disk"),
        ),
    ),
    (
        "Workers",
        "short",
        (
            ("sum by (state) (jellybean_gateway_workers)", "{{state}}"),
            (f"sum(increase(jellybean_gateway_left_out_total{_RATE}))", "left out"),
        ),
    ),
    ("Spool", "bytes", (("sum(jellybean_gateway_kept_bytes)", "kept on disk"),)),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as JSON that Grafana imports; the Prometheus data source is chosen at import."""
    width = 24 // len(STATS)
    stats = [
        _panel("stat", number, title, unit, ((query, ""),), (width * number, 0, width, 4))
        for number, (title, unit, query) in enumerate(STATS)
    ]
    graphs = [
        _panel("timeseries", len(STATS) + at, *graph, (at % 2 * _WIDTH, 4 + at // 2 * _HEIGHT, _WIDTH, _HEIGHT))
        for at, graph in enumerate(GRAPHS)
    ]
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "title": "JellyBean",
        "uid": "jellybean",
        "schemaVersion": 39,
        "tags": ["jellybean"],
        "time": {"from": "now-15m", "to": "now"},
        "refresh": "5s",
        "templating": {"list": [source]},
        "panels": [*stats, *graphs],
    }


def _panel(
    kind: str, number: int, title: str, unit: str, queries: Sequence[Query], at: tuple[int, int, int, int]
) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number + 1,
        "type": kind,
        "title": title,
        "datasource": source,
        "gridPos": dict(zip(("x", "y", "w", "h"), at, strict=True)),
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(queries)
        ],
    }
