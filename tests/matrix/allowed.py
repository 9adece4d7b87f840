"""Pairs of features and questions that are refused, with the reason: what the planner does not know yet.

The list may only become shorter: a test fails for a pair that is no longer refused until its line is removed.
"""

from __future__ import annotations

_BY_REASON: dict[str, tuple[str, ...]] = {
    "the audit of a state would follow whole streams, a few of which say little of the others": ("state x audits",),
    "requests with a state get one selection, and are not answered later": ("state x eventually",),
    "a trace states the rates, which the highest ones contradict": ("max rate x calendar",),
}

ALLOWED: dict[str, str] = {name: reason for reason, names in _BY_REASON.items() for name in names}
