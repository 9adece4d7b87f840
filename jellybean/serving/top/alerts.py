"""Prometheus alert rules of a run, on the metrics of docs/metrics.md.

Rules compare what is measured with what the plan states, so they need no thresholds of their own for rate, latency and
cost. Every rule is about one gateway (`job`, `instance`).
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML

WINDOW = "5m"  # rates are averaged over this time: long enough for a burst of random arrivals to even out
ABOVE_PLAN = 1.1  # offered / planned rate; a plan has spare capacity for less
SERVER_ERRORS = 0.01  # share of the requests that ended
_AT = "job, instance"
_CLIENT_ERRORS = f'ignoring (outcome) rate(jellybean_gateway_requests_total{{outcome="client_error"}}[{WINDOW}])'
OFFERED_PER_S = f"rate(jellybean_gateway_received_total[{WINDOW}]) - {_CLIENT_ERRORS}"
P99_S = f"histogram_quantile(0.99, sum by ({_AT}, le) (rate(jellybean_gateway_latency_seconds_bucket[{WINDOW}])))"
_REPLAN = "jellybean plan DIR --from running --set sources.NAME.rate=..., then jellybean apply DIR"


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert: fires when `expr` (PromQL) has had samples for the time `lasting`."""

    alert: str
    expr: str
    lasting: str
    severity: str
    summary: str
    description: str


RULES = (
    Rule(
        "JellyBeanOverload",
        f"({OFFERED_PER_S}) > {ABOVE_PLAN} * jellybean_plan_requests_per_second",
        "5m",
        "warning",
        "{{ $value | humanize }}/s offered, more than planned",
        f"`jellybean top DIR` names the command; {_REPLAN}.",
    ),
    Rule(
        "JellyBeanLatencyAboveTarget",
        f"{P99_S} > on ({_AT}) jellybean_slo_latency_p99_seconds",
        "5m",
        "warning",
        "p99 latency {{ $value | humanizeDuration }}, above the plan's target",
        "More is offered than planned, a worker is gone, or runs take longer than profiled: jellybean top DIR.",
    ),
    Rule(
        "JellyBeanShedsRequests",
        f'rate(jellybean_gateway_requests_total{{outcome="shed"}}[{WINDOW}]) > 0',
        "1m",
        "critical",
        "{{ $value | humanize }}/s refused because of overload",
        f"{_REPLAN}.",
    ),
    Rule(
        "JellyBeanLateRequests",
        f'rate(jellybean_gateway_requests_total{{outcome="late"}}[{WINDOW}]) > 0',
        "1m",
        "critical",
        "{{ $value | humanize }}/s without an answer in time",
        "Requests wait for longer than their time limit: jellybean top DIR shows queues and workers.",
    ),
    Rule(
        "JellyBeanServerErrors",
        f'rate(jellybean_gateway_requests_total{{outcome="server_error"}}[{WINDOW}])'
        f" > ignoring (outcome) {SERVER_ERRORS} * sum without (outcome)"
        f" (rate(jellybean_gateway_requests_total[{WINDOW}]))",
        "1m",
        "critical",
        "{{ $value | humanize }}/s failed",
        "The gateway's log has a line with the reason for each.",
    ),
    Rule(
        "JellyBeanWorkerGone",
        'jellybean_gateway_workers{state="gone"} > 0',
        "1m",
        "critical",
        "{{ $value }} workers gone",
        "The plan is served without them: jellybean top DIR names them.",
    ),
    Rule(
        "JellyBeanOverBudget",
        "3600 * sum without (of) (rate(jellybean_gateway_cost_usd_total[1h])) > jellybean_slo_budget_usd_per_h",
        "15m",
        "warning",
        "{{ $value | humanize }} USD/h, above the budget",
        "More crosses the links than planned: jellybean top DIR shows what each costs.",
    ),
)


def alert_rules() -> str:
    """A rules file for Prometheus (`rule_files:`), as YAML."""
    rules: list[dict[str, Any]] = [
        {
            "alert": rule.alert,
            "expr": rule.expr,
            "for": rule.lasting,
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary, "description": rule.description},
        }
        for rule in RULES
    ]
    text = io.StringIO()
    yaml = YAML()
    yaml.width = 4096  # an expression is not broken into lines
    yaml.dump({"groups": [{"name": "jellybean", "rules": rules}]}, text)
    return text.getvalue()
