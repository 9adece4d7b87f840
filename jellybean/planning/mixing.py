"""Plans that mix variants: what their selections are as text and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jellybean.display import formats
from jellybean_solver import Objective, Plan, selection_shares


def selection_lines(plan: Plan) -> Iterator[str]:
    """One line per selection that requests get: its share, and the variants that are not the same in all of them."""
    if not plan.mixes:
        return
    mixed = [operator.name for operator in plan.operators if operator.others]
    workflows = [workflow.name for workflow in plan.workflows]
    parts = sorted(selection_shares(plan), key=lambda part: -part.share)
    for part in sorted(parts, key=lambda part: workflows.index(part.workflow)) if workflows else parts:
        variants = ", ".join(f"{name} {part.selection[name]}" for name in mixed if name in part.selection)
        of = f"the requests of {part.workflow}" if workflows else "the requests"
        if variants:
            yield f"{formats.percent(part.share)} of {of} get {variants}"


def selections_json(plan: Plan) -> list[dict[str, Any]]:
    """The selections that requests get as JSON values, with the share of the requests that get each."""
    return [
        {
            **({"workflow": part.workflow} if part.workflow else {}),
            "share": part.share,
            "selection": dict(part.selection),
        }
        for part in selection_shares(plan)
    ]


def spread_lines(plan: Plan) -> Iterator[str]:
    """One line if the children of a request are spread over identical workers."""
    if plan.spread:
        groups = ", ".join(f"{name} ({' + '.join(str(len(one)) for one in own)})" for name, own in plan.spread.items())
        yield f"the children of a request are spread round-robin over identical workers: {groups}"


def is_accuracy_maximised(plan: Plan) -> bool:
    """True if the plan is the one of the highest mean accuracy, not the cheapest."""
    return plan.certificate.objective_of is Objective.MEAN_ACCURACY
