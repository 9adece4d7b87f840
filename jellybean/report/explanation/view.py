"""The text of an explanation: answers to --why-not, binding requirements, value of relaxations, alternatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.display.terminal import WARN
from jellybean.planning.explain import ESTIMATED_BELOW, Explained
from jellybean.report.explanation.conflict import (
    closing_of_conflict,
    members_text,
    reason_text,
    relaxation_text,
    with_relaxations,
)
from jellybean.report.explanation.words import amount, count_of, more_time, section, table_of, title_of
from jellybean.report.plans.plan_view import p99_lines, plan_line
from jellybean_solver import (
    CLOSED_FORM_RATIO,
    COST_TOLERANCE,
    Counterfactual,
    LimitAnalysis,
    Objective,
    Part,
    RequirementKind,
    WhyNot,
    in_true_prices,
)


def explained_text(explained: Explained) -> RenderableType:
    """The whole explanation as terminal text, most important parts first."""
    conflict = explained.explanation.conflict
    if conflict is None:
        return Group(*(item for part in Part for item in part_text(explained, part)), *closing_text(explained))
    known = [with_relaxations(explained, conflict, number) for number in range(1, len(conflict.relaxations) + 1)]
    parts = [
        *reason_text(explained),
        *members_text(explained),
        *(line for found in known for line in relaxation_text(found)),
    ]
    return Group(*parts, *closing_text(explained))


def part_text(explained: Explained, part: Part) -> list[RenderableType]:
    """One part of an explanation, which may be incomplete in other parts."""
    return list(_PARTS[part](explained))


def closing_text(explained: Explained) -> list[RenderableType]:
    """What follows the last part: the questions that were not answered, and how the figures were made."""
    conflict = explained.explanation.conflict
    if conflict is not None:
        return closing_of_conflict(explained, conflict)
    return [*_unanswered(explained), Text(_footer(explained), "dim")]


def _plan(explained: Explained) -> list[RenderableType]:
    if explained.explanation.plan is None:
        return []
    lines = [*p99_lines(explained.judged)] if explained.judged is not None else []
    problem = explained.problem
    if problem.counts is not Objective.COST:
        lines.append(f"USD/h below are of {problem.counts} alone, at its price")
    return [plan_line(in_true_prices(problem, explained.explanation.plan)), *(Text(f"  {line}") for line in lines)]


def _values(explained: Explained) -> list[RenderableType]:
    answered = [change for change in explained.explanation.values if change.status != UNKNOWN]
    return section("Effect of one unit", _changes(explained, answered)) if answered else []


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
            parts += section(title, _changes(explained, sorted(chosen, key=_by_loss)))
    return parts


def _footer(explained: Explained) -> str:
    found = explained.explanation
    solved = f"{count_of(found.solves)} solved in {explained.explain_s:.1f} s"
    text = f"{solved}; every figure is the optimum of a modified problem"
    if found.plan is not None and found.plan.certificate.penalty_usd_per_h:
        text += ", with the penalty of its soft target"
    changes = [*found.values, *found.choices, *(c for limit in found.limits for c in (limit.without, limit.more) if c)]
    if not all(map(_proven, changes)):
        text += ", except those with ~, which compare the best plans found (--json has the proven ranges)"
    for name, target_s in explained.soft_as_s.items():
        text += f"; the soft p99 latency{f' of {name}' if name else ''} is explained as the hard one of "
        text += f"{formats.duration(target_s)} that its plan keeps"
    if found.plan is not None and found.plan.slo.latency_p99_s is not None:
        low, high = CLOSED_FORM_RATIO
        text += (
            f"; the p99 of alternatives is estimated in closed form ({low:g} to {high:g} times the simulated in "
            f"benchmarks) where that is at most {ESTIMATED_BELOW:.0%} of the target, and otherwise from one simulation"
        )
    return text + more_time(explained)


def _unanswered(explained: Explained) -> list[RenderableType]:
    """Table of the questions that were not answered within the time limit."""
    found = explained.explanation
    asked = {
        "binding": [title_of(explained, limit.requirement).plain for limit in found.limits if _open(limit)],
        "one unit": [change.words for change in found.values if change.status == UNKNOWN],
        "choices": [change.words for change in found.choices if change.status == UNKNOWN],
    }
    table = table_of("", "")
    for heading, texts in asked.items():
        if texts:
            more = f", and {len(texts) - MAX_ITEMS} more" if len(texts) > MAX_ITEMS else ""
            table.add_row(Text(heading, "dim"), Text(", ".join(texts[:MAX_ITEMS]) + more, WARN))
    return section("Not answered within the time limit", table) if table.row_count else []


def _open(limit: LimitAnalysis) -> bool:
    """True if the time limit was reached before the cost of a limit was known."""
    return not limit.binds and limit.without is not None and limit.without.status == UNKNOWN


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
    table = table_of("requirement", "used", "limit", "without it", "one unit more", right=(1, 2, 3, 4))
    for limit in binding:
        table.add_row(
            title_of(explained, limit.requirement),
            amount(limit.requirement.kind, limit.used),
            amount(limit.requirement.kind, limit.requirement.value),
            _both(limit.without),
            _both(limit.more),
        )
    of = "cost in USD/h" if not _is_of_accuracy(explained) else "the mean accuracy in points"
    title = f"Binding requirements: change of {of} without it, and with one unit more"
    parts = section(title, table) if binding else []
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
        makes = "less accurate" if _is_of_accuracy(explained) else "more expensive"
        parts.append(Text(f"No binding requirements: none on its own makes the plan {makes}", "bold"))
    loose = [
        limit
        for limit in limits
        if not limit.binds and not _open(limit) and limit.requirement.kind is not RequirementKind.RATE
    ]
    rest = table_of("", "", right=())
    for kind in RequirementKind:
        texts = [_loose(explained, limit) for limit in loose if limit.requirement.kind is kind]
        if texts:
            more = f", and {len(texts) - MAX_ITEMS} more" if len(texts) > MAX_ITEMS else ""
            rest.add_row(Text(TITLES[kind], "dim"), Text(", ".join(texts[:MAX_ITEMS]) + more, "dim"))
    if rest.row_count:
        parts += section("Not binding", rest)
    return parts


POINTS_TOLERANCE = 0.01  # points of accuracy: as narrow as proofs of mixtures are
LEAST_SHARE = 0.001  # of the cost: smaller differences are not told where the accuracy is what counts
MAX_ITEMS = 8  # items listed per line; the rest is only counted
UNKNOWN = "unknown"  # status of a question that was not answered in time
TITLES = {
    RequirementKind.ACCURACY: "accuracy",
    RequirementKind.MEAN_ACCURACY: "mean accuracy",
    RequirementKind.SURVIVE: "losses",
    RequirementKind.MARGIN: "margin",
    RequirementKind.RATE: "rate",
    RequirementKind.BUDGET: "budget",
    RequirementKind.LIMIT: "energy and carbon",
    RequirementKind.LATENCY_P99: "p99 latency",
    RequirementKind.UTILISATION: "utilisation",
    RequirementKind.SHARING: "exclusive",
    RequirementKind.BANDWIDTH: "bandwidth",
    RequirementKind.MEMORY: "memory",
    RequirementKind.DEVICE_MEMORY: "device memory",
    RequirementKind.RESIDENCY: "residency",
    RequirementKind.COUNT: "workers",
}


def _loose(explained: Explained, limit: LimitAnalysis) -> str:
    requirement = limit.requirement
    name = (
        requirement.subjects[0]
        if requirement.kind in (RequirementKind.MEMORY, RequirementKind.DEVICE_MEMORY, RequirementKind.COUNT)
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
    return f"(without it, a better plan is rejected: {without.reason})"


def _changes(explained: Explained, changes: Sequence[Counterfactual]) -> Table:
    table = table_of("", "points" if _is_of_accuracy(explained) else "USD/h", "", "changes", right=(1, 2))
    for change in changes:
        words = Text(change.words)
        if change.worse_by is None:
            table.add_row(words, "", "", Text(f"no plan: {change.reason}", "dim"))
            continue
        table.add_row(words, _delta(change), _share(change), Text(_consequence(change), "dim"))
    return table


def _consequence(change: Counterfactual) -> str:
    if not change.holds:
        return f"rejected: {change.reason}"
    stated = "accuracy" in change.kind and change.accuracy is not None and change.delta_points is None
    reached = f"accuracy {formats.accuracy(change.accuracy)}; " if stated else ""
    if change.delta_points is not None and abs(change.delta_share or 0.0) >= LEAST_SHARE:
        cost = change.delta_usd_per_h or 0.0
        reached = f"{formats.usd(abs(cost))} USD/h {'dearer' if cost > 0 else 'cheaper'}; "
    return f"{reached}{'; '.join(change.differences) or 'the same variants and workers'}"


def _is_of_accuracy(explained: Explained) -> bool:
    """True if the plan is the most accurate one, so that changes are in points of accuracy."""
    return explained.problem.objective is Objective.MEAN_ACCURACY


def _delta(change: Counterfactual | None) -> str:
    """Change of cost in USD/h, or of accuracy in points: `+0.48`, or `~+0.48` if it is not proven."""
    if change is None or change.worse_by is None:
        return ""
    about = "" if _proven(change) else "~"
    delta = change.delta_usd_per_h if change.delta_points is None else change.delta_points
    if not delta:
        return f"{about}0"
    return f"{about}{'+' if delta > 0 else '-'}{formats.usd(abs(delta))}"


def _proven(change: Counterfactual) -> bool:
    low, high = change.worse_between
    within = COST_TOLERANCE if change.delta_points is None else POINTS_TOLERANCE
    return low is None or high is None or high - low <= within


def _both(change: Counterfactual | None) -> str:
    """Absolute (USD/h) and relative change of cost: `-3.27 (-47 %)`."""
    if change is not None and change.status in ("refused", UNKNOWN):
        return "rejected" if change.status == "refused" else "unknown"
    share = _share(change) if change is not None else ""
    return f"{_delta(change)} ({share})" if share else _delta(change)


def _share(change: Counterfactual) -> str:
    if change.delta_share is None or change.delta_points is not None or not change.delta_usd_per_h:
        return ""
    percent = change.delta_share * 100
    return f"{percent:+.0f} %" if abs(percent) >= 9.5 else f"{percent:+.1f} %"


def _by_loss(change: Counterfactual) -> tuple[bool, float]:
    return not change.holds, change.worse_by or 0.0


def _saving(limit: LimitAnalysis) -> float:
    changes = [change for change in (limit.without, limit.more) if change is not None and change.holds]
    return min((change.worse_by or 0.0 for change in changes), default=0.0)


_PARTS: Mapping[Part, Callable[[Explained], Sequence[RenderableType]]] = {
    Part.PLAN: _plan,
    Part.WHY_NOT: lambda explained: [_why_not(explained, found) for found in explained.explanation.why_not],
    Part.LIMITS: _limits,
    Part.VALUES: _values,
    Part.CHOICES: _choices,
    Part.REASON: reason_text,
    Part.CONFLICT: members_text,
    Part.RELAXATION: relaxation_text,
}
