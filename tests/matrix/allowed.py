"""Pairs of features and questions that are refused, with the reason: what the planner does not know yet.

The list may only become shorter: a test fails for a pair that is no longer refused until its line is removed.
"""

from __future__ import annotations

_BY_REASON: dict[str, tuple[str, ...]] = {
    "audits are of one workflow with one selection, no losses and one stream of requests": (
        "several x audits",
        "unlike x audits",
        "streams x audits",
        "state x audits",
        "cascade x audits",
        "mixture x audits",
        "soft mean x audits",
        "audits x lose worker",
        "audits x lose link",
        "audits x lose site",
        "audits x worth",
        "audits x priorities",
        "audits x eventually",
        "audits x max accuracy",
        "audits x add",
    ),
    "soft p99 latencies have the cost as objective, and are not known to `plan --add`": (
        "soft p99 x max accuracy",
        "soft p99 x max rate",
        "soft p99 x min latency",
    ),
    "requests with a state get one selection, and are not answered later": ("state x eventually",),
    "calendars are of alike sites, and leave nobody out": (
        "unlike x calendar",
        "worth x calendar",
        "priorities x calendar",
    ),
    "`frontier` knows no soft p99 latencies": (
        "soft p99 x frontier",
        "soft p99 x of latency-cost",
        "soft p99 x of rate-cost",
        "soft p99 x of accuracy-rate",
    ),
    "calendars choose plans by their cost": (
        "max accuracy x calendar",
        "max rate x calendar",
        "min latency x calendar",
    ),
}

ALLOWED: dict[str, str] = {name: reason for reason, names in _BY_REASON.items() for name in names}
