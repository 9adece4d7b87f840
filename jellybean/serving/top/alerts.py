"""Prometheus alert rules of a run, on the metrics of docs/metrics.md.

Rules compare what is measured with what the plan states, so they need no thresholds of their own for latency and cost.
What overload is, and what more than single failures are, is that of `overload`. Every rule is about one gateway (`job`,
`instance`), and of a plan of several about each workflow (`workflow`, a label that series of a plan of one lack); the
budget is one of all workflows together. What is offered to several gateways of a plan (`jellybean_gateway_replicas`) is
added up by `job`. Error budgets are of a service (`job`, `namespace`): they last longer than a gateway, which another
plan replaces in Kubernetes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML

from jellybean.serving.outcomes import OutcomeKind
from jellybean.serving.top.overload import ABOVE_PLAN, FAILED_SHARE, NOISE
from jellybean_agent import EXPIRING_SHARE

WINDOW_S = 300
WINDOW = f"{WINDOW_S}s"  # rates are averaged over this time: long enough for a burst of random arrivals to even out
_PROCESS = "job, instance"
_AT = f"{_PROCESS}, workflow"
_CLIENT_ERRORS = f'ignoring (outcome) rate(jellybean_gateway_requests_total{{outcome="client_error"}}[{WINDOW}])'
OFFERED_PER_S = f"rate(jellybean_gateway_received_total[{WINDOW}]) - {_CLIENT_ERRORS}"
_PLANNED_PER_S = "jellybean_plan_requests_per_second"
_OF_SEVERAL = f"and on ({_PROCESS}) jellybean_gateway_replicas"
_OFFERED_TOGETHER = f"sum by (job, workflow) (({OFFERED_PER_S}) {_OF_SEVERAL})"
_PLANNED_TOGETHER = f"max by (job, workflow) ({_PLANNED_PER_S} {_OF_SEVERAL})"
P99_S = f"histogram_quantile(0.99, sum by ({_AT}, le) (rate(jellybean_gateway_latency_seconds_bucket[{WINDOW}])))"
_CERTIFICATE_LEFT_S = "jellybean_certificate_expires_timestamp_seconds - time()"
_REPLAN = "jellybean plan DIR --from running --set sources.NAME.rate=..., then jellybean apply DIR"

_OBJECTIVE = 0.01  # error budget: of a p99 target, the share of requests that may fail or be later than it
_SERVICE = "job, namespace, workflow"
_FAILED = "late|server_error|shed|unavailable"
_OPERATOR = "jellybean_operator"
_LONGEST_RECONCILIATION_S = 1800  # a search of minutes, and 600 s until pods are ready


def _burn(window: str, factor: float) -> str:
    """The share of requests in `window` that failed or were over the p99 target, where it spends `factor` budgets.

    Of plans with a target alone: others have no `over_target`. Series of gateways that have gone count in the window.
    """
    failed = f'sum by ({_SERVICE}) (rate(jellybean_gateway_requests_total{{outcome=~"{_FAILED}"}}[{window}]))'
    slow = f"sum by ({_SERVICE}) (rate(jellybean_gateway_over_target_total[{window}]))"
    free = (
        f'sum by ({_SERVICE}) (rate(jellybean_gateway_requests_total{{outcome=~"cancelled|client_error"}}[{window}]))'
    )
    offered = f"(sum by ({_SERVICE}) (rate(jellybean_gateway_received_total[{window}])) - {free})"
    return f"(({failed} + {slow}) / {offered} > {factor * _OBJECTIVE:g})"


def _above_plan(offered_per_s: str, planned_per_s: str) -> str:
    """Offered load that is more than planned, and more than chance explains."""
    # PromQL compares from left to right, and filters.
    noise_per_s = f"{planned_per_s} + {NOISE} * sqrt({planned_per_s} / {WINDOW_S})"
    return f"{offered_per_s} > {ABOVE_PLAN} * {planned_per_s} > {noise_per_s}"


def _share_above(outcome: OutcomeKind) -> str:
    """Requests per second of an outcome, where they are more than single ones."""
    ended = f'rate(jellybean_gateway_requests_total{{outcome="{outcome}"}}[{WINDOW}])'
    return f"{ended} > ignoring (outcome) {FAILED_SHARE} * ({OFFERED_PER_S})"


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
        f"{_above_plan(f'({OFFERED_PER_S})', _PLANNED_PER_S)} or {_above_plan(_OFFERED_TOGETHER, _PLANNED_TOGETHER)}",
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
        _share_above(OutcomeKind.SHED),
        "1m",
        "critical",
        "{{ $value | humanize }}/s refused because of overload",
        f"{_REPLAN}.",
    ),
    Rule(
        "JellyBeanLateRequests",
        _share_above(OutcomeKind.LATE),
        "1m",
        "critical",
        "{{ $value | humanize }}/s without an answer in time",
        "Requests wait for longer than their time limit: jellybean top DIR shows queues and workers.",
    ),
    Rule(
        "JellyBeanUnavailable",
        _share_above(OutcomeKind.UNAVAILABLE),
        "1m",
        "critical",
        "{{ $value | humanize }}/s reach no worker",
        "Boxes have not joined, or workers are gone: jellybean top DIR names them.",
    ),
    Rule(
        "JellyBeanServerErrors",
        _share_above(OutcomeKind.SERVER_ERROR),
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
        "JellyBeanRelayNotDialled",
        "sum by (job, instance) (jellybean_relay_offers) == 0",
        "10m",  # a new plan's pods may take as long to start
        "critical",
        "no tunnel has dialled the relay",
        "No agent of another cluster is reached: does relay.address lead to its Service? The tunnels' logs say more.",
    ),
    Rule(
        "JellyBeanCertificateNotRenewed",
        f"{_CERTIFICATE_LEFT_S} < jellybean_certificate_lifetime_seconds / 3",
        "2h",  # the operator of Kubernetes renews at a third, and looks once an hour
        "warning",
        "the certificate of {{ $labels.process }} expires in {{ $value | humanizeDuration }}, and is not renewed",
        "jellybean certs DIR renews it, with --renew in Kubernetes; joined boxes and the operator do by themselves.",
    ),
    Rule(
        "JellyBeanCertificateExpires",
        f"{_CERTIFICATE_LEFT_S} < {EXPIRING_SHARE} * jellybean_certificate_lifetime_seconds",
        "1m",
        "critical",
        "the certificate of {{ $labels.process }} expires in {{ $value | humanizeDuration }}",
        "jellybean certs DIR renews it, with --renew in Kubernetes, or the box itself if it joined: see the log.",
    ),
    Rule(
        "JellyBeanLedgerNotWritten",
        f"time() - jellybean_ledger_written_timestamp_seconds > {WINDOW_S}",
        "1m",
        "warning",
        "the ledger was written {{ $value | humanizeDuration }} ago",
        "Requests are served, and the gateway counts on: its log has the database's error.",
    ),
    Rule(
        "JellyBeanOverBudget",
        f"3600 * sum by ({_PROCESS}) (rate(jellybean_gateway_cost_usd_total[1h]))"
        f" > on ({_PROCESS}) jellybean_slo_budget_usd_per_h",
        "15m",
        "warning",
        "{{ $value | humanize }} USD/h, above the budget",
        "More crosses the links than planned: jellybean top DIR shows what each costs.",
    ),
)


# Windows and factors: Google, The Site Reliability Workbook, chapter 5 (multiwindow, multi-burn-rate alerts, 30 days).
BURN_RULES = (
    Rule(
        "JellyBeanErrorBudgetBurnsFast",
        f"{_burn('1h', 14.4)} and {_burn('5m', 14.4)} or {_burn('6h', 6)} and {_burn('30m', 6)}",
        "2m",
        "critical",
        "{{ $value | humanizePercentage }} of requests fail or are over the plan's p99 target",
        f"Of a budget of {_OBJECTIVE:.0%} in 30 days, 2 % went in an hour, or 5 % in six: jellybean top DIR.",
    ),
    Rule(
        "JellyBeanErrorBudgetBurnsSlowly",
        f"{_burn('3d', 1)} and {_burn('6h', 1)}",
        "1h",
        "warning",
        "{{ $value | humanizePercentage }} of requests fail or are over the plan's p99 target",
        f"Of a budget of {_OBJECTIVE:.0%} in 30 days, 10 % went in three days: {_REPLAN}.",
    ),
)
SPOOL_RULES = (
    Rule(
        "JellyBeanSpoolGrows",
        "min_over_time(jellybean_gateway_kept[30m]) > max_over_time(jellybean_gateway_kept[30m] offset 31m)",
        "5m",
        "warning",
        "{{ $value }} requests on disk, ever more for an hour",
        f"They arrive faster than they are answered: {_REPLAN}; a full spool refuses requests.",
    ),
    Rule(
        "JellyBeanSpoolOld",
        "jellybean_gateway_kept_oldest_seconds > 3600",
        "5m",
        "warning",
        "a request has been on disk for {{ $value | humanizeDuration }}",
        "Its workers are away, or it fails again and again: jellybean top DIR, and the gateway's log.",
    ),
)
OPERATOR_RULES = (
    Rule(
        "JellyBeanStalePlan",
        f"{_OPERATOR}_resource_stale == 1",
        "15m",
        "warning",
        "{{ $labels.namespace }}/{{ $labels.name }} is served by an earlier plan than it asks for",
        "kubectl describe workflow NAME: its conditions Planned and Deployed have the reason.",
    ),
    Rule(
        "JellyBeanResourceNotReady",
        f'{_OPERATOR}_resource_condition{{condition="Ready"}} < 1',
        "15m",
        "critical",
        "{{ $labels.namespace }}/{{ $labels.name }} is not ready",
        "kubectl describe workflow NAME: its condition Ready has the reason.",
    ),
    Rule(
        "JellyBeanOperatorNotReconciling",
        f"time() - {_OPERATOR}_resource_reconciled_timestamp_seconds > {_LONGEST_RECONCILIATION_S}",
        "5m",
        "critical",
        "{{ $labels.namespace }}/{{ $labels.name }} was last reconciled {{ $value | humanizeDuration }} ago",
        "The operator's log has the reason: the API server refuses or does not answer, or a search does not end.",
    ),
    Rule(
        "JellyBeanOperatorAbsent",
        f"sum by (job) ({_OPERATOR}_leader) == 0"
        f" or (count by (job) (last_over_time({_OPERATOR}_leader[6h])) unless count by (job) ({_OPERATOR}_leader))",
        "5m",
        "critical",
        "no operator of {{ $labels.job }} leads",
        "What serves goes on, but nothing is planned, repaired or renewed: kubectl get pods, and the Lease"
        " jellybean-operator.",
    ),
)
ALL_RULES = (*RULES, *BURN_RULES, *SPOOL_RULES, *OPERATOR_RULES)


def alert_groups() -> dict[str, Any]:
    """The content of a rules file for Prometheus (`rule_files:`): of runs, and of the operator."""
    groups = (("jellybean", (*RULES, *BURN_RULES, *SPOOL_RULES)), ("jellybean-operator", OPERATOR_RULES))
    return {"groups": [{"name": name, "rules": _written(rules)} for name, rules in groups]}


def _written(rules: Sequence[Rule]) -> list[dict[str, Any]]:
    return [
        {
            "alert": rule.alert,
            "expr": rule.expr,
            "for": rule.lasting,
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary, "description": rule.description},
        }
        for rule in rules
    ]


def alert_rules() -> str:
    """The rules file as YAML."""
    text = io.StringIO()
    yaml = YAML()
    yaml.width = 4096  # an expression is not broken into lines
    yaml.dump(alert_groups(), text)
    return text.getvalue()
