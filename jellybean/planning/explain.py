"""Explaining a project's plan: the solver's explanation with p99 simulated, in the words and lines of its documents."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jellybean.documents import AnyProject, MultiWorkflowProject, build_cuts, build_problem
from jellybean.documents.locations import DocumentLocations, Location, document_locations
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.planning.alternatives import Settling
from jellybean.planning.project_plan import plan_project
from jellybean.planning.simulation import SEEDS, simulated_p99_s
from jellybean.quantities import (
    BANDWIDTH,
    DURATION,
    PRICE_PER_H,
    RATE,
    SIZE,
    did_you_mean,
    format_quantity,
    parse_quantity,
    quoted,
)
from jellybean.quantities import QuantityKind as Unit
from jellybean_solver import (
    WORKFLOW_SEPARATOR,
    Explanation,
    PlannedCut,
    Problem,
    Question,
    Requirement,
    RequirementKind,
    ResolveSettings,
    Sharing,
    explain,
    planned_cuts,
    problem_as_planned,
)

DIGITS = 5  # of a relaxation as it is proposed
LEAST_S = 0.1  # left for what comes after a plan with cuts
ITS_SHARE = 0.5  # of a time limit: a search for the plan in question that took so long was ended by it
MOST_TIMES = 20  # a time limit that is proposed, as a multiple of the one that was not enough
ACCURACY_DIGITS = 1e6  # per percent point


@dataclass(frozen=True)
class Explained:
    """An explanation, and where its requirements stand."""

    problem: Problem
    explanation: Explanation
    places: Mapping[Requirement, tuple[Location, ...]]
    explain_s: float
    cuts: tuple[PlannedCut, ...] = ()  # which all that is said takes as given
    time_limit_s: float | None = None

    @property
    def enough_s(self) -> float | None:
        """A time limit that may do, by what was solved in this one; None where nothing was left out for time."""
        found, limit_s = self.explanation, self.time_limit_s
        refused = found.conflict is not None and not found.conflict.proven
        if limit_s is None or not (found.unanswered or (refused and self.explain_s >= ITS_SHARE * limit_s)):
            return None
        times = math.ceil(2 * (found.solves + found.unanswered) / max(1, found.solves))
        return float(f"{limit_s * min(times, MOST_TIMES):.2g}")

    def settings(self, requirement: Requirement, value: float | None) -> tuple[str, ...]:
        """What to write for a requirement eased to `value`: PATH=VALUE as `--set` takes it, never short of `value`."""
        return tuple(
            f"{place.path}={_written(self.problem, requirement, index, value)}"
            for index, place in enumerate(self.places[requirement])
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values: the explanation's, with places and settings beside its requirements."""
        found = self.explanation.to_dict()
        for limit, stated in zip(self.explanation.limits, found["limits"], strict=True):
            stated["places"] = [place.to_dict() for place in self.places[limit.requirement]]
        conflicts = [(self.explanation.conflict, found["conflict"])]
        conflicts += [
            (answer.conflict, stated["conflict"])
            for answer, stated in zip(self.explanation.why_not, found["why_not"], strict=True)
        ]
        for conflict, stated in conflicts:
            for relaxation, item in zip(conflict.relaxations if conflict else (), _stated(stated), strict=True):
                requirement = relaxation.requirement
                item["requirement"]["places"] = [place.to_dict() for place in self.places[requirement]]
                item["settings"] = list(self.settings(requirement, relaxation.value)) if relaxation.helps else []
        return {**found, "cuts": [asdict(cut) for cut in self.cuts], "explain_s": self.explain_s}


def _stated(conflict: dict[str, Any] | None) -> list[dict[str, Any]]:
    return list(conflict["requirements"]) if conflict is not None else []


def explain_project(
    project: AnyProject,
    overrides: Sequence[str] = (),
    why_not: Sequence[str] = (),
    *,
    time_limit_s: float | None = None,
    progress: Callable[[float, float, str], None] = lambda done, total, label: None,
) -> Explained:
    """Explain the plan of a project read with these overrides. DocumentError for a question about nothing there is."""
    started = time.perf_counter()
    problem, cuts = build_problem(project), build_cuts(project)
    given: tuple[PlannedCut, ...] = ()
    if cuts:
        first_s = None if time_limit_s is None else time_limit_s / 2
        plan = plan_project(project, time_limit_s=first_s, compare=False).plan
        if plan is not None:
            problem, given = problem_as_planned(problem, cuts, plan), planned_cuts(plan)
    questions = parse_questions(problem, why_not)
    left_s = None if time_limit_s is None else max(LEAST_S, time_limit_s - (time.perf_counter() - started))
    places = _Requirements(project, document_locations(project, overrides))
    settings = ResolveSettings(
        time_limit_s=left_s,
        clock=time.monotonic,
        p99_s=lambda plan, seed: simulated_p99_s(plan, seed=seed),
        seeds=SEEDS,
        keep_deadline=Settling(),
        advance=progress,
        exclusive=places.exclusive(problem),
    )
    explaining = time.perf_counter()
    explanation = explain(problem, questions, settings)
    explain_s = time.perf_counter() - explaining
    progress(explanation.solves, explanation.solves, "done")
    return Explained(problem, explanation, places.of(explanation), explain_s, given, time_limit_s)


def parse_questions(problem: Problem, texts: Sequence[str]) -> tuple[Question, ...]:
    """Questions from OPERATOR=VARIANT, TIER, POOL, OPERATOR@TIER, OPERATOR@POOL. DocumentError names all wrong ones."""
    questions: list[Question] = []
    wrong: list[DocumentProblem] = []
    for text in texts:
        found = _question(problem, text.strip())
        if isinstance(found, Question):
            questions.append(found)
        else:
            wrong.append(DocumentProblem(f"--why-not {text}", None, None, "", *found))
    if wrong:
        raise DocumentError(wrong)
    return tuple(questions)


def _question(problem: Problem, text: str) -> Question | tuple[str, str]:
    """The question, or what is wrong with it and a hint."""
    operators = problem.operator_by_name
    sign = "=" if "=" in text else "@" if "@" in text else ""
    name, _, rest = (part.strip() for part in text.partition(sign)) if sign else ("", "", text)
    if sign and name not in operators:
        return f"there is no operator {quoted(name)}", _near(name, list(operators))
    if sign == "=":
        variants = [variant.name for variant in operators[name].variants]
        if rest not in variants:
            return f"operator {name} has no variant {quoted(rest)}", _near(rest, variants)
        return Question(text, name, variant=rest)
    places = [*problem.tiers, *(pool.name for pool in problem.pools)]
    if rest not in places:
        if rest in operators:
            return f"{quoted(rest)} is an operator", f"write {rest}=VARIANT or {rest}@TIER"
        return f"there is no tier or pool {quoted(rest)}", _near(rest, places)
    return Question(text, name or None, place=rest)


def _near(word: str, known: Sequence[str]) -> str:
    return did_you_mean(word, list(known)) or f"there are: {', '.join(dict.fromkeys(known))}"


class _Requirements:
    """Requirements of a problem as values of its documents."""

    def __init__(self, project: AnyProject, places: DocumentLocations) -> None:
        self.project, self.places = project, places

    def exclusive(self, problem: Problem) -> tuple[tuple[str, ...], ...]:
        """Exclusive pools by the value that made them so: their own, or the one in limits."""
        workers = self.project.infrastructure.workers
        names = [pool.name for pool in problem.pools if pool.sharing is Sharing.EXCLUSIVE]
        own = tuple((name,) for name in names if workers[name].sharing is not None)
        rest = tuple(name for name in names if workers[name].sharing is None)
        return (*own, rest) if rest else own

    def of(self, explanation: Explanation) -> dict[Requirement, tuple[Location, ...]]:
        """The places of every requirement that an explanation mentions."""
        conflicts = [explanation.conflict, *(answer.conflict for answer in explanation.why_not)]
        mentioned = [limit.requirement for limit in explanation.limits]
        for conflict in conflicts:
            mentioned += [*conflict.members, *conflict.remaining] if conflict is not None else []
        return {
            requirement: tuple(self.places.locate(*path) for path in self._paths(requirement))
            for requirement in mentioned
        }

    def _paths(self, requirement: Requirement) -> list[tuple[Any, ...]]:
        kind, subjects = requirement.kind, requirement.subjects
        paths: dict[RequirementKind, Callable[[], list[tuple[Any, ...]]]] = {
            RequirementKind.ACCURACY: lambda: [(_document(*subjects), "slo", "accuracy")],
            RequirementKind.BUDGET: lambda: [self._budget()],
            RequirementKind.LATENCY_P99: lambda: [(_document(*subjects), "slo", "latency_p99")],
            RequirementKind.RATE: lambda: [
                (document, "sources", name, "rate") for document, name in map(_own, subjects)
            ],
            RequirementKind.UTILISATION: lambda: [("infrastructure", "limits", "utilisation")],
            RequirementKind.SHARING: lambda: [self._sharing(subjects[0])],
            RequirementKind.RESIDENCY: lambda: self._residency(*subjects),
            RequirementKind.BANDWIDTH: lambda: [("infrastructure", "links", self._link(subjects), "bandwidth")],
            RequirementKind.MEMORY: lambda: [("infrastructure", "workers", subjects[0], "memory")],
            RequirementKind.COUNT: lambda: [("infrastructure", "workers", subjects[0], "count")],
        }
        return paths[kind]()

    def _sharing(self, pool: str) -> tuple[Any, ...]:
        own = self.project.infrastructure.workers[pool].sharing is not None
        return ("infrastructure", "workers", pool, "sharing") if own else ("infrastructure", "limits", "sharing")

    def _budget(self) -> tuple[Any, ...]:
        if isinstance(self.project, MultiWorkflowProject):
            return ("infrastructure", "limits", "budget")
        return ("workflow", "slo", "budget")

    def _residency(self, name: str, downstream: str | None = None) -> list[tuple[Any, ...]]:
        """Of an operator its tiers; of an edge what it or its source says of where its data may be."""
        document, name = _own(name)
        if downstream is None:
            return [(document, "operators", name, "tiers")]
        downstream = _own(downstream)[1]
        project = self.project.workflows[document] if isinstance(self.project, MultiWorkflowProject) else self.project
        inputs = project.workflow.operators[downstream].inputs
        paths: list[tuple[Any, ...]] = [
            (document, "operators", downstream, "inputs", index, "stays_in")
            for index, edge in enumerate(inputs)
            if edge.upstream == name and edge.stays_in is not None
        ]
        source = project.workflow.sources.get(name)
        if source is not None and source.stays_in is not None:
            paths.append((document, "sources", name, "stays_in"))
        return paths

    def _link(self, ends: tuple[str, ...]) -> int:
        links = self.project.infrastructure.links
        return next(i for i, link in enumerate(links) if (link.upstream_tier, link.downstream_tier) == ends)


def _document(workflow: str = "") -> str:
    """As `DocumentLocations` calls the document of one of several workflows, or of the only one."""
    return workflow or "workflow"


def _own(name: str) -> tuple[str, str]:
    """The document that a source or operator stands in, and its name there."""
    workflow, _, own = name.rpartition(WORKFLOW_SEPARATOR)
    return _document(workflow), own


_UNITS = {
    RequirementKind.BUDGET: PRICE_PER_H,
    RequirementKind.LATENCY_P99: DURATION,
    RequirementKind.BANDWIDTH: BANDWIDTH,
    RequirementKind.MEMORY: SIZE,
}


def _written(problem: Problem, requirement: Requirement, index: int, value: float | None) -> str:
    kind = requirement.kind
    if value is None:
        return "shared" if kind is RequirementKind.SHARING else "null"
    if kind is RequirementKind.RATE:
        return _rounded(RATE, problem.source_by_name[requirement.subjects[index]].rate_per_s * value, up=False)
    if kind in _UNITS:
        return _rounded(_UNITS[kind], value, up=True)
    if kind is RequirementKind.ACCURACY:
        return f"{math.floor(value * ACCURACY_DIGITS) / ACCURACY_DIGITS:.10g}"
    return f"{math.ceil(value * 1e4) / 1e4:g}"


def _rounded(unit: Unit, value: float, *, up: bool) -> str:
    """A few digits, on the side of `value` where it still holds."""
    text = format_quantity(unit, value, DIGITS)
    read = parse_quantity(unit, text)
    if read == value or (read > value) == up:
        return text
    return format_quantity(unit, value * (1 + (6e-5 if up else -6e-5)), DIGITS)
