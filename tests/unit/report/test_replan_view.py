"""The sentence that tells a decision about a running plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.report.plans.replan_view import sentence
from jellybean_solver import Cost, Migration, Replanned, ReplanSettings, Verdict
from jellybean_solver.migration.migration_cost import ModelLoads
from tests import report_plans

LOADS = (ModelLoads("box", "edge", "find", "v", None, 5, 2.0**30, 0.1, 0.03),)


def decision(saved_usd: float, verdict: Verdict = Verdict.KEEP) -> Replanned:
    """A day that costs 24 USD, against one that costs so much less, 0.65 USD of migration in it."""
    plan = report_plans.one_worker()
    moved = Migration(LOADS, kept=3, dropped=1)
    running = replace(plan, cost=Cost(1.0, 0.0))
    best = replace(plan, cost=Cost((24.0 - saved_usd - moved.total_usd) / 24.0, 0.0))
    return Replanned(verdict, ReplanSettings(), running, (), best, moved, None, 24.0 - max(0.0, saved_usd), 1)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            decision(0.264),
            "keep the running plan: the best change saves 1.1 % over 24 h (0.26 USD) after 0.65 USD of migration, "
            "below 2 %",
        ),
        (
            replace(decision(0.264), bound_usd=23.4),
            "keep the running plan: the best change saves 1.1 % over 24 h (0.26 USD) after 0.65 USD of migration, "
            "below 2 %; no change saves more than 2.5 %",
        ),
        (decision(0.0), "keep the running plan: no change was found that reduces the cost over 24 h"),
        (
            replace(decision(-1.0), bound_usd=23.0),
            "keep the running plan: no change was found that reduces the cost over 24 h; no change "
            "saves more than 4.2 %",
        ),
        (
            replace(decision(3.0), best=None, migration=None, refused="p99 latency would be 2 s"),
            "keep the running plan: the best change would miss a target: p99 latency would be 2 s",
        ),
        (
            replace(decision(0.0), best=None, migration=None, bound_usd=12.0),
            "keep the running plan: no other plan was found; no change saves more than 50 %",
        ),
        (
            decision(2.4, Verdict.REPLACE),
            "replace the running plan: this saves 10 % over 24 h (2.40 USD) after 0.65 USD of migration",
        ),
        (
            replace(decision(-2.4, Verdict.REPLACE), broken=("too busy",)),
            "replace the running plan: it no longer meets the targets",
        ),
        (
            replace(decision(0.0, Verdict.NONE), broken=("too busy",), best=None, migration=None),
            "the running plan no longer meets the targets, and no other plan was found that does",
        ),
    ],
)
def test_what_was_decided_and_why(found: Replanned, told: str) -> None:
    assert sentence(found) == told
