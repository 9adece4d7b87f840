"""A Grafana dashboard of a run, on the metrics of docs/metrics.md.

Of a plan of several workflows, a variable chooses which of them are shown; by default all. Workers' series are of all:
the names of their operators say of which.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jellybean.display.terminal import BAD, GOOD, WARN  # Grafana's names too
from jellybean.serving.top.alerts import ALL_RULES
from jellybean.serving.top.overload import ABOVE_PLAN

_RATE = "[$__rate_interval]"
_CHOSEN = 'workflow=~"$workflow"'
_WIDTH, _HEIGHT = 12, 8  # Grafana's grid has 24 columns
_STAT_WIDTH, _STAT_HEIGHT = 3, 4
Query = tuple[str, str]  # PromQL, legend
PLANNED = re.compile(r"(?:^| )(?:planned|target|bound|budget)$")  # legends of figures of the plan: dashed lines
_OFFERED = (
    f"(sum(rate(jellybean_gateway_received_total{_RATE}))"
    f' - sum(rate(jellybean_gateway_requests_total{{outcome="client_error"}}{_RATE})))'
)


# Series of a workflow; not those of the whole process, nor those that are added to workers'.
_OF_WORKFLOW = re.compile(
    r"(jellybean_(?:gateway|plan|slo)_(?!workers\b|replicas\b|budget_|link_bytes|network_cost)\w+)(?:{([^}]*)})?"
)


def _quantile(share: float) -> str:
    return f"histogram_quantile({share}, sum by (workflow, le) (rate(jellybean_gateway_latency_seconds_bucket{_RATE})))"


def _once(series: str) -> str:
    """Series that each of several gateways states of the whole plan, divided so that their sum is that of one."""
    return f"({series} / on (job, instance) group_left () jellybean_gateway_replicas or {series})"


_PLANNED_PER_S = f"sum({_once('jellybean_plan_requests_per_second')})"
_WORKERS_READY = _once('jellybean_gateway_workers{state="ready"}')
_P99_TARGET = "min by (workflow) (jellybean_slo_latency_p99_seconds)"


# Beside the plan's figure, 1 is as planned.
LIMITS: dict[str, tuple[float, float]] = {"Offered / planned": (1.0, ABOVE_PLAN), "p99 / target": (0.9, 1.0)}
STATS: tuple[tuple[str, str, str], ...] = (  # title, unit, PromQL
    ("Offered / planned", "percentunit", f"{_OFFERED} / {_PLANNED_PER_S}"),
    ("p99 / target", "percentunit", f"max({_quantile(0.99)} / on (workflow) {_P99_TARGET})"),
    (
        "Cost so far",
        "currencyUSD",
        f"sum({_once('jellybean_gateway_cost_usd_total')})"
        " or sum(jellybean_cost_usd_total) + (sum(jellybean_network_cost_usd_total) or vector(0))",
    ),
    (
        "USD per hour",
        "currencyUSD",
        f"sum(jellybean_price_usd_per_h) + 3600 * ((sum(rate(jellybean_network_cost_usd_total{_RATE})) or vector(0))"
        f" + (sum(rate(jellybean_gateway_network_cost_usd_total{_RATE})) or vector(0)))",
    ),
    ("Answered", "reqps", f'sum(rate(jellybean_gateway_requests_total{{outcome="answered"}}{_RATE}))'),
    ("Workers ready", "short", f"sum({_WORKERS_READY})"),
)
GRAPHS: tuple[tuple[str, str, tuple[Query, ...]], ...] = (  # title, unit, queries
    (
        "Requests",
        "reqps",
        (
            (_OFFERED, "offered"),
            (_PLANNED_PER_S, "planned"),
            (f"sum by (outcome) (rate(jellybean_gateway_requests_total{_RATE}))", "{{outcome}}"),
            *((f"sum(rate(jellybean_gateway_{name}_total{_RATE}))", name) for name in ("retries", "hedges")),
        ),
    ),
    (
        "Latency",
        "s",
        (
            *((_quantile(share), f"{{{{workflow}}}} p{100 * share:.0f}") for share in (0.5, 0.9, 0.99)),
            (_P99_TARGET, "{{workflow}} target"),
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
        "USD per hour",
        "currencyUSD",
        (
            (f"3600 * sum({_once('rate(jellybean_gateway_cost_usd_total[1h])')})", "measured"),
            (f"sum({_once('jellybean_plan_cost_usd_per_h')})", "planned"),
            (f"sum({_once('jellybean_plan_bound_usd_per_h')})", "bound"),
            (f"sum({_once('jellybean_slo_budget_usd_per_h')})", "budget"),
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
            (f"sum by (state) ({_once('jellybean_gateway_workers')})", "{{state}}"),
            (f"sum(increase(jellybean_gateway_left_out_total{_RATE}))", "left out"),
        ),
    ),
    ("Spool", "bytes", (("sum(jellybean_gateway_kept_bytes)", "kept on disk"),)),
    (
        "Relay: idle connections of tunnels",
        "short",
        (("sum by (worker) (jellybean_relay_offers)", "{{worker}}"),),
    ),
    (
        "Relay: bytes",
        "Bps",
        ((f"sum by (worker, direction) (rate(jellybean_relay_bytes_total{_RATE}))", "{{worker}} {{direction}}"),),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as JSON that Grafana imports; the Prometheus data source is chosen at import."""
    stats = [
        _panel("stat", number, title, unit, ((query, ""),), (_STAT_WIDTH * number, 0, _STAT_WIDTH, _STAT_HEIGHT))
        for number, (title, unit, query) in enumerate(STATS)
    ]
    alerts = _alerts(len(stats), _STAT_WIDTH * len(stats))
    top = len(stats) + 1
    graphs = [
        _panel("timeseries", top + at, *graph, (at % 2 * _WIDTH, _STAT_HEIGHT + at // 2 * _HEIGHT, _WIDTH, _HEIGHT))
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
        "templating": {"list": [source, _workflows()]},
        "panels": [*stats, alerts, *graphs],
    }


def _workflows() -> dict[str, Any]:
    """The variable with the workflows to show. Its `All` includes series without the label: a plan of one has none."""
    query = "label_values(jellybean_gateway_received_total, workflow)"
    return {
        "name": "workflow",
        "label": "Workflow",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": query, "refId": "workflow"},
        "refresh": 2,  # whenever the range of time changes: plans replace each other
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def of_chosen_workflows(query: str) -> str:
    """A query with its series of workflows restricted to those that are chosen."""
    return _OF_WORKFLOW.sub(lambda series: f"{series[1]}{{{', '.join(filter(None, (series[2], _CHOSEN)))}}}", query)


def _alerts(number: int, left: int) -> dict[str, Any]:
    """The alerts that fire now, by the rules of `jellybean dashboard --alerts`."""
    return {
        "id": number + 1,
        "type": "alertlist",
        "title": "Alerts",
        "gridPos": {"x": left, "y": 0, "w": 24 - left, "h": _STAT_HEIGHT},
        "options": {
            "alertName": "JellyBean",
            "stateFilter": {"firing": True, "pending": True},
            "maxItems": len(ALL_RULES),
        },
        "targets": [],
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
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, **(_stat_colour(title) if kind == "stat" else {})},
            "overrides": [_dashed()] if any(PLANNED.search(legend) for _, legend in queries) else [],
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": of_chosen_workflows(query),
                "legendFormat": legend,
            }
            for index, (query, legend) in enumerate(queries)
        ],
    }


def _stat_colour(title: str) -> dict[str, Any]:
    """Green below the first limit of a panel, yellow up to the second one, red above.

    Without limits the colour of the text, as Grafana's default is green.
    """
    if title not in LIMITS:
        return {"color": {"mode": "fixed", "fixedColor": "text"}}
    near, above = LIMITS[title]
    levels = ((GOOD, None), (WARN, near), (BAD, above))
    steps = [{"color": colour, "value": value} for colour, value in levels]
    return {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}


def _dashed() -> dict[str, Any]:
    """Figures of the plan as dashed lines in the colour of the text, as in all pages and pictures."""
    properties = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
        {"id": "custom.fillOpacity", "value": 0},
        {"id": "color", "value": {"mode": "fixed", "fixedColor": "text"}},
    ]
    return {"matcher": {"id": "byRegexp", "options": f"/{PLANNED.pattern}/"}, "properties": properties}
