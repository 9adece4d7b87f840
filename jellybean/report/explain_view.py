"""The text of an explanation: answers to --why-not, binding requirements, value of relaxations, alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import BAD, WARN
from jellybean.documents.locations import Location
from jellybean.planning.explain import ESTIMATED_BELOW, Explained
from jellybean.report.plan_view import p99_lines, plan_line
from jellybean_solver import (
    CLOSED_FORM_RATIO,
    COST_TOLERANCE,
    Conflict,
    Counterfactual,
    LeastRelaxation,
    LimitAnalysis,
    Part,
    Requirement,
    RequirementKind,
    WhyNot,
)


def explained_text(explained: Explained) -> RenderableType:
    """The whole explanation as terminal text, most important parts first."""
    explanation = explained.explanation
    if explanation.conflict is not None or explanation.plan is None:
        return _infeasible(explained)
    parts = [item for part in Part for item in part_text(explained, part)]
    return Group(*parts, closing_text(explained))


def part_text(explained: Explained, part: Part) -> list[RenderableType]:
    """One part of an explanation, which may be incomplete in other parts."""
    return list(_PARTS[part](explained))


def closing_text(explained: Explained) -> RenderableType:
    """What follows the last part: the questions that were not answered, and how the figures were made."""
    return Group(*_unanswered(explained), Text(_footer(explained), "dim"))


def _plan(explained: Explained) -> list[RenderableType]:
    if explained.explanation.plan is None:
        return []
    lines = p99_lines(explained.judged) if explained.judged is not None else ()
    return [plan_line(explained.explanation.plan), *(Text(f"  {line}") for line in lines)]


def _values(explained: Explained) -> list[RenderableType]:
    answered = [change for change in explained.explanation.values if change.status != UNKNOWN]
    return _section("Effect of one unit", _changes(answered)) if answered else []


def _choices(explained: Explained) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for kind, title in (
        ("tier", "Without one tier"),
        ("pool", "Without one pool"),
        ("variant", "With another variant"),
    ):
        found = explained.explanation.choices
        chosen = [change for change in found if change.kind == kind and change.status != UNKNOWN]
        if chosen:
            parts += _section(title, _changes(sorted(chosen, key=_by_cost)))
    return parts


def _footer(explained: Explained) -> str:
    found = explained.explanation
    solved = f"{_count(found.solves)} solved in {explained.explain_s:.1f} s"
    text = f"{solved}; every figure is the optimum of a modified problem"
    changes = [*found.values, *found.choices, *(c for limit in found.limits for c in (limit.without, limit.more) if c)]
    if not all(map(_proven, changes)):
        text += ", except those with ~, which compare the cheapest plans found (--json has the proven ranges)"
    if explained.cuts:
        cuts = ", ".join(f"{cut.operator} after {cut.layers} of {cut.of} layers" for cut in explained.cuts)
        text += f"; the cuts of the plan are fixed ({cuts})"
    if found.plan is not None and found.plan.slo.latency_p99_s is not None:
        low, high = CLOSED_FORM_RATIO
        text += (
            f"; the p99 of alternatives is estimated in closed form ({low:g} to {high:g} times the simulated) where "
            f"that is at most {ESTIMATED_BELOW:.0%} of the target, and otherwise from one simulation"
        )
    return text + _more_time(explained)


def _more_time(explained: Explained) -> str:
    """Advice to try a longer time limit, if questions were skipped for lack of time; otherwise an empty text."""
    if explained.enough_s is None:
        return ""
    left = explained.explanation.unanswered
    what = f"{_count(left)} not solved for lack of time" if left else "the search reached its time limit"
    return f"; {what}: try --time-limit {explained.enough_s:g}"


def _count(problems: int) -> str:
    return f"{problems} problem{'s' * (problems != 1)}"


def _unanswered(explained: Explained) -> list[RenderableType]:
    """Table of the questions that were not answered within the time limit."""
    found = explained.explanation
    asked = {
        "binding": [_title(explained, limit.requirement).plain for limit in found.limits if _open(limit)],
        "one unit": [change.words for change in found.values if change.status == UNKNOWN],
        "choices": [change.words for change in found.choices if change.status == UNKNOWN],
    }
    table = _table("", "")
    for heading, texts in asked.items():
        if texts:
            more = f", and {len(texts) - MAX_ITEMS} more" if len(texts) > MAX_ITEMS else ""
            table.add_row(Text(heading, "dim"), Text(", ".join(texts[:MAX_ITEMS]) + more, WARN))
    return _section("Not answered within the time limit", table) if table.row_count else []


def _open(limit: LimitAnalysis) -> bool:
    """True if the time limit was reached before the cost of a limit was known."""
    return not limit.binds and limit.without is not None and limit.without.status == UNKNOWN


def _section(title: str, table: RenderableType) -> list[RenderableType]:
    return [Text(title, "bold"), Padding(table, (0, 0, 0, 2), expand=False)]


def _table(*headings: str, right: Iterable[int] = (), whole: Iterable[int] = ()) -> Table:
    """An empty table. `right`: right-aligned columns of numbers; `whole`: text columns. Neither kind wraps."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=any(headings))
    numbers, unfolded = set(right), {*right, *whole}
    for index, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="right" if index in numbers else "left",
            no_wrap=index in unfolded,
            overflow="fold",
        )
    return table


def _why_not(explained: Explained, found: WhyNot) -> RenderableType:
    text = Text.assemble(("why not ", "bold"), (f"{found.question}: ", "bold"), found.sentence)
    if found.conflict is None:
        return text
    ways = [
        f"{' '.join(explained.settings(item.requirement, item.value))} ({formats.usd(item.cost_usd_per_h)})"
        for item in found.conflict.relaxations
        if item.helps
    ]
    if ways:
        text.append(f"\n  sufficient on its own: {'; '.join(ways[:MAX_ITEMS])}", "dim")
    return text


def _limits(explained: Explained) -> list[RenderableType]:
    limits = explained.explanation.limits
    binding = sorted((limit for limit in limits if limit.binds), key=_saving)
    table = _table("requirement", "used", "limit", "without it", "one unit more", right=(1, 2, 3, 4))
    for limit in binding:
        table.add_row(
            _title(explained, limit.requirement),
            amount(limit.requirement.kind, limit.used),
            amount(limit.requirement.kind, limit.requirement.value),
            _both(limit.without),
            _both(limit.more),
        )
    parts = (
        _section("Binding requirements: change of cost in USD/h without it, and with one unit more", table)
        if binding
        else []
    )
    if any(limit.requirement.kind is RequirementKind.COUNT and not limit.reached for limit in binding):
        parts.append(
            Text(
                "  a partly used pool can be binding: with more workers it could take over a load that it "
                "cannot take over now",
                "dim",
            )
        )
    if not binding and any(_open(limit) for limit in limits):
        parts.append(
            Text("Binding requirements unknown: the time limit was reached before all were checked", f"bold {WARN}")
        )
    elif not binding:
        parts.append(Text("No binding requirements: none on its own makes the plan more expensive", "bold"))
    loose = [
        limit
        for limit in limits
        if not limit.binds and not _open(limit) and limit.requirement.kind is not RequirementKind.RATE
    ]
    rest = _table("", "", right=())
    for kind in RequirementKind:
        texts = [_loose(explained, limit) for limit in loose if limit.requirement.kind is kind]
        if texts:
            more = f", and {len(texts) - MAX_ITEMS} more" if len(texts) > MAX_ITEMS else ""
            rest.add_row(Text(TITLES[kind], "dim"), Text(", ".join(texts[:MAX_ITEMS]) + more, "dim"))
    if rest.row_count:
        parts += _section("Not binding", rest)
    return parts


MAX_ITEMS = 8  # items listed per line; the rest is only counted
UNKNOWN = "unknown"  # status of a question that was not answered in time
TITLES = {
    RequirementKind.ACCURACY: "accuracy",
    RequirementKind.RATE: "rate",
    RequirementKind.BUDGET: "budget",
    RequirementKind.LATENCY_P99: "p99 latency",
    RequirementKind.UTILISATION: "utilisation",
    RequirementKind.SHARING: "exclusive",
    RequirementKind.BANDWIDTH: "bandwidth",
    RequirementKind.MEMORY: "memory",
    RequirementKind.RESIDENCY: "residency",
    RequirementKind.COUNT: "workers",
}


def _loose(explained: Explained, limit: LimitAnalysis) -> str:
    requirement = limit.requirement
    name = (
        requirement.subjects[0]
        if requirement.kind in (RequirementKind.MEMORY, RequirementKind.COUNT)
        else " -> ".join(requirement.subjects)
    )
    used, of = amount(requirement.kind, limit.used), amount(requirement.kind, requirement.value)
    figures = f"{used} of {of}" if limit.used is not None else ""
    return " ".join(part for part in (name, figures, _unsure(limit.without)) if part)


def _unsure(without: Counterfactual | None) -> str:
    """Why it is unknown whether a limit is binding; empty if it is known.

    `without`: the result of solving again without the limit; None if that was not done.
    """
    if without is None or without.holds:
        return ""
    return f"(without it, a cheaper plan is rejected: {without.reason})"


def amount(kind: RequirementKind, value: float | None) -> str:
    """A requirement's value as text with its unit; empty for None."""
    if value is None:
        return ""
    texts = {
        RequirementKind.ACCURACY: lambda: formats.accuracy(value),
        RequirementKind.RATE: lambda: f"x{value:.4g}",
        RequirementKind.BUDGET: lambda: f"{formats.usd(value)} USD/h",
        RequirementKind.LATENCY_P99: lambda: formats.duration(value),
        RequirementKind.BANDWIDTH: lambda: f"{formats.number(value * 8e-6)} Mbit/s",
        RequirementKind.MEMORY: lambda: formats.size(value),
        RequirementKind.COUNT: lambda: f"{value:.0f}",
    }
    return texts[kind]() if kind in texts else f"{value:.3g}"


def _changes(changes: Sequence[Counterfactual]) -> Table:
    table = _table("", "USD/h", "", "changes", right=(1, 2))
    for change in changes:
        words = Text(change.words)
        if change.delta_usd_per_h is None:
            table.add_row(words, "", "", Text(f"no plan: {change.reason}", "dim"))
            continue
        stated = "accuracy" in change.kind and change.accuracy is not None
        reached = f"accuracy {formats.accuracy(change.accuracy)}; " if stated else ""
        consequence = f"{reached}{'; '.join(change.differences) or 'the same variants and workers'}"
        if not change.holds:
            consequence = f"rejected: {change.reason}"
        table.add_row(words, _delta(change), _share(change), Text(consequence, "dim"))
    return table


def _delta(change: Counterfactual | None) -> str:
    """Change of cost in USD/h: `+0.48`, or `~+0.48` if it is not proven."""
    if change is None or change.delta_usd_per_h is None:
        return ""
    about = "" if _proven(change) else "~"
    if change.delta_usd_per_h == 0:
        return f"{about}0"
    return f"{about}{'+' if change.delta_usd_per_h > 0 else '-'}{formats.usd(abs(change.delta_usd_per_h))}"


def _proven(change: Counterfactual) -> bool:
    low, high = change.delta_between_usd_per_h
    return low is None or high is None or high - low <= COST_TOLERANCE


def _both(change: Counterfactual | None) -> str:
    """Absolute (USD/h) and relative change of cost: `-3.27 (-47 %)`."""
    if change is not None and change.status in ("refused", UNKNOWN):
        return "rejected" if change.status == "refused" else "unknown"
    share = _share(change) if change is not None else ""
    return f"{_delta(change)} ({share})" if share else _delta(change)


def _share(change: Counterfactual) -> str:
    if change.delta_share is None or change.delta_usd_per_h in (None, 0):
        return ""
    percent = change.delta_share * 100
    return f"{percent:+.0f} %" if abs(percent) >= 9.5 else f"{percent:+.1f} %"


def _by_cost(change: Counterfactual) -> tuple[bool, float]:
    return not change.holds, change.delta_usd_per_h or 0.0


def _saving(limit: LimitAnalysis) -> float:
    changes = [change for change in (limit.without, limit.more) if change is not None and change.holds]
    return min((change.delta_usd_per_h or 0.0 for change in changes), default=0.0)


_PARTS: Mapping[Part, Callable[[Explained], Sequence[RenderableType]]] = {
    Part.PLAN: _plan,
    Part.WHY_NOT: lambda explained: [_why_not(explained, found) for found in explained.explanation.why_not],
    Part.LIMITS: _limits,
    Part.VALUES: _values,
    Part.CHOICES: _choices,
}


def _infeasible(explained: Explained) -> RenderableType:
    found = explained.explanation.conflict
    refused = explained.explanation.status == "refused"
    what = "no plan was found that meets all targets" if refused else "no plan meets the targets"
    title = Text(f"{explained.problem.name}: {what}", f"bold {BAD}")
    if found is None:
        return title
    parts: list[RenderableType] = [title]
    if refused:
        parts.append(Text(f"{found.reason}, and no plan was found that meets it"))
    elif not found.relaxations and not found.proven:
        parts.append(Text(f"The conflict is unknown: the time limit was reached before it was found. {found.reason}"))
    elif not found.relaxations:
        parts.append(Text(f"Regardless of the targets: {found.reason}"))
    else:
        parts.append(Text(_introduction(found), "bold"))
    if found.relaxations:
        parts.append(Padding(_conflict(explained, found), (0, 0, 0, 2), expand=False))
    if explained.explanation.status != "refused" and found.relaxations:
        parts.append(Text(found.reason, "dim"))
    if found.remaining:
        names = "; ".join(_title(explained, requirement).plain for requirement in found.remaining)
        parts.append(Text(f"Relaxing one is not enough: without the first, these still conflict: {names}"))
    if not found.proven and found.relaxations and explained.explanation.status != "refused":
        text = "Not proven: for some sets of requirements the time limit was reached or a plan was rejected"
        parts.append(Text(text, WARN))
    solved = f"{_count(explained.explanation.solves)} solved in {explained.explain_s:.1f} s"
    parts.append(Text(solved + _more_time(explained), "dim"))
    return Group(*parts)


def _introduction(found: Conflict) -> str:
    if len(found.relaxations) == 1:
        return "This requirement cannot be met, even if all others are dropped:"
    fewest = " (a minimum conflict)" if found.smallest else ""
    return (
        f"These {len(found.relaxations)} requirements conflict{fewest}; without any one of them, the others can be met:"
    )


def _conflict(explained: Explained, found: Conflict) -> Table:
    table = _table("where", "as written", "sufficient on its own", "USD/h", right=(3,), whole=(0, 1))
    for item in found.relaxations:
        cost = formats.usd(item.cost_usd_per_h) if item.cost_usd_per_h is not None else ""
        enough = (_enough(explained, item), cost)
        for location in explained.locations[item.requirement]:
            where = "--set" if location.line is None else str(location)
            table.add_row(Text(where), Text(_written(location, item.requirement)), *map(Text, enough))
            enough = ("", "")
    return table


def _enough(explained: Explained, item: LeastRelaxation) -> str:
    if item.helps is None:
        return "unknown: not solved in time, or plans rejected"
    if not item.helps:
        return "none"
    if item.value is None:
        dropped = {RequirementKind.SHARING: "shared", RequirementKind.RESIDENCY: "anywhere"}
        return dropped.get(item.requirement.kind, "only without it" if item.exact else "without it (less may suffice)")
    values = dict.fromkeys(s.partition("=")[2] for s in explained.settings(item.requirement, item.value))
    return ", ".join(values) + ("" if item.exact else " (less may suffice)")


def _title(explained: Explained, requirement: Requirement) -> Text:
    """The requirement as written in the documents; one line per place that states it."""
    return Text("\n".join(_written(location, requirement) for location in explained.locations[requirement]))


def _written(location: Location, requirement: Requirement) -> str:
    """One place of a requirement as path and value, for example `slo.accuracy: 56`."""
    default = amount(requirement.kind, requirement.value) or "exclusive"
    return f"{location.path}: {location.written if location.written is not None else f'{default} (default)'}"
