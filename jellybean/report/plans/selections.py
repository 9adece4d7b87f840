"""Plans that mix variants: what their selections are as text and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jellybean.display import formats
from jellybean_solver import WORKFLOW_SEPARATOR, Plan, selection_shares, whole_streams

MOST_NAMED = 3  # workflows of those that mix alike


def selection_lines(plan: Plan) -> Iterator[str]:
    """One line per selection that requests get: its share, and the variants that are not the same in all of them.

    Of several workflows each; of many one line for all that mix alike.
    """
    if not plan.mixes:
        return
    by_workflow: dict[str, list[str]] = {}
    streams = {name for one in whole_streams(plan) for name in one.operators}
    shared: dict[str, str] = {}
    for part in sorted(selection_shares(plan), key=lambda part: -part.share):
        mixed = [name for name in part.selection if plan.operator_by_name[name].others]
        if mixed and part.share > 0:
            variants = ", ".join(f"{_own(name)} {part.selection[name]}" for name in mixed)
            shared[part.workflow] = "requests" if streams.isdisjoint(mixed) else "streams"
            by_workflow.setdefault(part.workflow, []).append(f"{formats.percent(part.share)} get {variants}")
    alike: dict[tuple[str, ...], list[str]] = {}
    for workflow, lines in by_workflow.items():
        alike.setdefault(tuple(lines), []).append(workflow)
    for lines_of_all, workflows in alike.items():
        if workflows == [""]:
            yield from (line.replace(" get ", f" of the {shared['']} get ", 1) for line in lines_of_all)
        else:
            yield f"of the {shared[workflows[0]]} of {_named(workflows)} {'; '.join(lines_of_all)}"


def _own(name: str) -> str:
    """An operator's name without that of its workflow."""
    return name.rpartition(WORKFLOW_SEPARATOR)[2]


def _named(workflows: Sequence[str]) -> str:
    more = len(workflows) - MOST_NAMED
    return ", ".join(workflows[:MOST_NAMED]) + (f" and {more:,} more alike" if more > 0 else "")


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
