"""The text of an explanation without a plan: the reason, the conflict, and how far each member must be relaxed."""

from __future__ import annotations

from dataclasses import replace

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import BAD, WARN
from jellybean.planning.explain import Explained
from jellybean.report.explanation.words import count_of, more_time, table_of, title_of, written
from jellybean_solver import Conflict, LeastRelaxation, RequirementKind


def with_relaxations(explained: Explained, conflict: Conflict, number: int) -> Explained:
    """The explanation when its first `number` relaxations were solved."""
    known = replace(conflict, relaxations=conflict.relaxations[:number])
    return replace(explained, explanation=replace(explained.explanation, conflict=known))


def reason_text(explained: Explained) -> list[RenderableType]:
    found = explained.explanation.conflict
    if found is None:
        return []
    if explained.explanation.status == "refused":
        title = f"{explained.problem.name}: no plan was found that meets all targets"
        return [Text(title, f"bold {BAD}"), Text(f"{found.reason}, and no plan was found that meets it")]
    return [Text(f"{explained.problem.name}: no plan meets the targets", f"bold {BAD}"), Text(found.reason)]


def members_text(explained: Explained) -> list[RenderableType]:
    found = explained.explanation.conflict
    if found is None or not found.relaxations:
        return []
    table = table_of("where", "as written", whole=(0,))
    for requirement in found.members:
        for location in explained.locations[requirement]:
            where = "--set" if location.line is None else str(location)
            table.add_row(Text(where), Text(written(location, requirement)))
    refused = explained.explanation.status == "refused"
    title = [] if refused else [Text(_introduction(found), "bold")]
    return [*title, Padding(table, (0, 0, 0, 2), expand=False)]


def relaxation_text(explained: Explained) -> list[RenderableType]:
    """The latest relaxation, below a heading if it is the first."""
    found = explained.explanation.conflict
    if found is None or not found.relaxations:
        return []
    item = found.relaxations[-1]
    paths = ", ".join(dict.fromkeys(location.path for location in explained.locations[item.requirement]))
    cost = f" ({formats.usd(item.cost_usd_per_h)} USD/h)" if item.cost_usd_per_h is not None else ""
    line = Text(f"  {paths}: {_enough(explained, item)}{cost}")
    return [line] if len(found.relaxations) > 1 else [Text("Sufficient on its own", "bold"), line]


def closing_of_conflict(explained: Explained, found: Conflict) -> list[RenderableType]:
    refused = explained.explanation.status == "refused"
    parts: list[RenderableType] = []
    if not found.relaxations and not refused:
        unknown = "The conflict is unknown: the time limit was reached before it was found"
        parts.append(Text("This holds regardless of the targets" if found.proven else unknown))
    if found.remaining:
        names = "; ".join(title_of(explained, requirement).plain for requirement in found.remaining)
        parts.append(Text(f"Relaxing one is not enough: without the first, these still conflict: {names}"))
    if not found.proven and found.relaxations and not refused:
        text = "Not proven: for some sets of requirements the time limit was reached or a plan was rejected"
        parts.append(Text(text, WARN))
    solved = f"{count_of(explained.explanation.solves)} solved in {explained.explain_s:.1f} s"
    return [*parts, Text(solved + more_time(explained), "dim")]


def _introduction(found: Conflict) -> str:
    if len(found.relaxations) == 1:
        return "This requirement cannot be met, even if all others are dropped:"
    fewest = " (a minimum conflict)" if found.smallest else ""
    return (
        f"These {len(found.relaxations)} requirements cannot be met together, whatever the others are{fewest}; "
        "dropping one resolves this conflict, another may remain:"
    )


def _enough(explained: Explained, item: LeastRelaxation) -> str:
    if item.helps is None:
        return "unknown: not solved in time, or plans rejected"
    if not item.helps:
        return "none"
    values = dict.fromkeys(s.partition("=")[2] for s in explained.settings(item.requirement, item.value))
    if item.value is None and (item.requirement.kind is not RequirementKind.SURVIVE or "null" in values):
        dropped = {RequirementKind.SHARING: "shared", RequirementKind.RESIDENCY: "anywhere"}
        return dropped.get(item.requirement.kind, "only without it" if item.exact else "without it (less may suffice)")
    return ", ".join(values) + ("" if item.exact else " (less may suffice)")
