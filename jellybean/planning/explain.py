"""Explain a project's plan: the solver's explanation with simulated p99 latencies and document locations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jellybean.documents import AnyProject, MultiWorkflowProject, Project, build_problem
from jellybean.documents.locations import DocumentLocations, Location, document_locations
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.planning.deadline.predicted_latency import Judged, judged_so_far, simulated_figures
from jellybean.planning.deadline.soft_plan import reached_s
from jellybean.planning.deadline.soft_targets import as_hard, soft_targets
from jellybean.planning.project_plan import best_of_equal_cost, plan_project, settle
from jellybean.planning.simulation import SEEDS
from jellybean.quantities import (
    BANDWIDTH,
    CARBON_PER_H,
    DURATION,
    POWER,
    PRICE_PER_H,
    RATE,
    SIZE,
    did_you_mean,
    format_quantity,
    parse_quantity,
    quoted,
)
from jellybean.quantities import QuantityKind as Unit
from jellybean_agent import Device
from jellybean_solver import (
    AUDIT_PREFIX,
    DEFAULT_GAP,
    WORKFLOW_SEPARATOR,
    DeadlineResult,
    Explanation,
    Objective,
    Part,
    Plan,
    Problem,
    Question,
    Requirement,
    RequirementKind,
    ResolveSettings,
    Sharing,
    Solution,
    explain,
    planned_cuts,
)

DIGITS = 5  # significant digits of a proposed relaxation
MIN_EXPLAIN_S = 0.1  # least time limit of the explanation, if planning for a soft target has used up the given one
STOPPED_SHARE = 0.5  # a search that used at least this share of the time limit counts as stopped by it
MAX_LIMIT_FACTOR = 20  # largest proposed time limit, as a multiple of the insufficient one
ACCURACY_STEPS = 1e6  # resolution of a proposed accuracy: steps per percentage point
# On benchmark plans the closed form is at least 0.89 of the simulated p99 (CLOSED_FORM_RATIO): half leaves a margin.
ESTIMATED_BELOW = 0.5


@dataclass(frozen=True)
class Explained:
    """An explanation with the document locations of its requirements."""

    problem: Problem
    explanation: Explanation
    locations: Mapping[Requirement, tuple[Location, ...]]
    explain_s: float
    time_limit_s: float | None = None
    # Workflow with a soft p99 latency -> the hard target that it is explained as: what the plan keeps.
    soft_as_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def enough_s(self) -> float | None:
        """Estimate of a sufficient time limit in seconds; None if nothing was omitted for lack of time."""
        explanation, limit_s = self.explanation, self.time_limit_s
        refused = explanation.conflict is not None and not explanation.conflict.proven
        if limit_s is None or not (explanation.unanswered or (refused and self.explain_s >= STOPPED_SHARE * limit_s)):
            return None
        times = math.ceil(2 * (explanation.solves + explanation.unanswered) / max(1, explanation.solves))
        return float(f"{limit_s * min(times, MAX_LIMIT_FACTOR):.2g}")

    def settings(self, requirement: Requirement, value: float | None) -> tuple[str, ...]:
        """`--set` options (PATH=VALUE) that relax a requirement to `value`, rounded towards the relaxed side."""
        return tuple(
            f"{location.path}={_setting_text(self.problem, requirement, index, value)}"
            for index, location in enumerate(self.locations[requirement])
        )

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON values, with locations and settings added to its requirements."""
        document = self.explanation.to_dict()
        for limit, item in zip(self.explanation.limits, document["limits"], strict=True):
            item["places"] = [location.to_dict() for location in self.locations[limit.requirement]]
        conflicts = [(self.explanation.conflict, document["conflict"])]
        conflicts += [
            (answer.conflict, stated["conflict"])
            for answer, stated in zip(self.explanation.why_not, document["why_not"], strict=True)
        ]
        for conflict, stated in conflicts:
            for relaxation, item in zip(
                conflict.relaxations if conflict else (), _relaxation_items(stated), strict=True
            ):
                requirement = relaxation.requirement
                item["requirement"]["places"] = [location.to_dict() for location in self.locations[requirement]]
                item["settings"] = list(self.settings(requirement, relaxation.value)) if relaxation.helps else []
        latency = self.judged.to_list() if self.judged is not None else None
        plan = self.explanation.plan
        cuts = [] if plan is None else [asdict(cut) for cut in planned_cuts(plan)]
        as_s: Mapping[str, float] | float = self.soft_as_s.get("", self.soft_as_s)
        soft = {"soft_latency_p99_as_s": as_s} if self.soft_as_s else {}
        return {**document, "latency_p99": latency, **soft, "cuts": cuts, "explain_s": self.explain_s}

    @property
    def judged(self) -> Judged | None:
        """The plan's predicted p99 latencies, from fewer simulations if time ended; None without a plan or target."""
        plan = self.explanation.plan
        return None if plan is None or self.explanation.conflict is not None else judged_so_far(plan)


def _relaxation_items(conflict: dict[str, Any] | None) -> list[dict[str, Any]]:
    return list(conflict["requirements"]) if conflict is not None else []


def explain_project(
    project: AnyProject,
    overrides: Sequence[str] = (),
    why_not: Sequence[str] = (),
    *,
    time_limit_s: float | None = None,
    progress: Callable[[float, float, str], None] = lambda done, total, label: None,
    publish: Callable[[Explained, Part], None] = lambda explained, part: None,
) -> Explained:
    """Explain the plan of a project that was loaded with `overrides`.

    `publish`: called with the explanation so far and its part that is complete now. DocumentError for a question about
    unknown names.
    """
    started = time.perf_counter()
    problem = build_problem(project)
    soft_as_s: Mapping[str, float] = {}
    if soft_targets(problem):
        half_s = None if time_limit_s is None else time_limit_s / 2
        judged = plan_project(project, time_limit_s=half_s, compare=False).judged
        soft_as_s = {} if judged is None else reached_s(judged)
    problem = as_hard(problem, soft_as_s)
    questions = parse_questions(problem, why_not)
    left_s = None if time_limit_s is None else max(MIN_EXPLAIN_S, time_limit_s - (time.perf_counter() - started))
    locator = _RequirementLocator(project, document_locations(project, overrides))
    steps = _Steps(progress)
    settings = ResolveSettings(
        time_limit_s=left_s,
        clock=time.monotonic,
        p99_s=_simulated_p99_s,
        seeds=SEEDS,
        keep_deadline=steps.keep_deadline,
        advance=steps.advance,
        exclusive=locator.exclusive(problem),
        estimated_below=ESTIMATED_BELOW,
    )
    explaining = time.perf_counter()

    def explained(explanation: Explanation) -> Explained:
        explain_s = time.perf_counter() - explaining
        return Explained(problem, explanation, locator.locate(explanation), explain_s, time_limit_s, soft_as_s)

    explanation = explain(problem, questions, settings, lambda found, part: publish(explained(found), part))
    progress(explanation.solves, explanation.solves, "done")
    return explained(explanation)


def _simulated_p99_s(plan: Plan, seed: int) -> dict[str, float]:
    """Implements `ResolveSettings.p99_s`."""
    return {name: figures.latency_p99_s for name, figures in simulated_figures(plan, seed).items()}


class _Steps:
    """Progress in questions; the search for a plan in time is shown within its question, with what is known so far."""

    def __init__(self, progress: Callable[[float, float, str], None]) -> None:
        self._progress, self._done, self._total = progress, 0.0, 1.0

    def advance(self, done: float, total: float, label: str) -> None:
        """Implements `ResolveSettings.advance`."""
        self._done, self._total = done, total
        self._progress(done, total, label)

    def keep_deadline(
        self, problem: Problem, cheapest: Solution, late: bool, time_limit_s: float | None, thorough: bool
    ) -> DeadlineResult:
        """Implements `ResolveSettings.keep_deadline`.

        If the cheapest plan misses the p99 target (`late`), or may miss it after a loss, returns a plan that meets it.
        Otherwise, without a time limit, returns the best plan of the same cost, as `plan` does.
        """
        if not late and not problem.survives:
            return DeadlineResult(cheapest if time_limit_s is not None else best_of_equal_cost(problem, cheapest))
        searched = self._searched if thorough else _ignore
        settled = settle(problem, cheapest, DEFAULT_GAP, time_limit_s, thorough=thorough, progress=searched)
        if settled.solution.plan is None or settled.reasons:
            return DeadlineResult(None, settled.fastest)
        return DeadlineResult(settled.solution)

    def _searched(self, done: float, total: float, label: str) -> None:
        self._progress(self._done + done / total, self._total, label)


def _ignore(done: float, total: float, label: str) -> None:
    """No progress."""


def parse_questions(problem: Problem, texts: Sequence[str]) -> tuple[Question, ...]:
    """Parse OPERATOR=VARIANT, TIER, POOL, OPERATOR@TIER and OPERATOR@POOL.

    DocumentError lists all invalid questions.
    """
    questions: list[Question] = []
    problems: list[DocumentProblem] = []
    for text in texts:
        parsed = _question(problem, text.strip())
        if isinstance(parsed, Question):
            questions.append(parsed)
        else:
            problems.append(DocumentProblem(f"--why-not {text}", None, None, "", *parsed))
    if problems:
        raise DocumentError(problems)
    return tuple(questions)


def _question(problem: Problem, text: str) -> Question | tuple[str, str]:
    """Parse one question; returns it, or (error message, hint) if it names something unknown."""
    operators = problem.operator_by_name
    sign = "=" if "=" in text else "@" if "@" in text else ""
    name, _, rest = (part.strip() for part in text.partition(sign)) if sign else ("", "", text)
    if sign and name not in operators:
        return f"there is no operator {quoted(name)}", _near(name, list(operators))
    if sign == "=":
        own = operators[name]
        variants = [*(one.name for one in own.variants), *(form.variant for form in own.forms if not form.is_cut)]
        if rest not in variants:
            return f"operator {name} has no variant {quoted(rest)}", _near(rest, variants)
        return Question(text, name, variant=rest)
    targets = [*problem.tiers, *(pool.name for pool in problem.pools)]
    if rest not in targets:
        if rest in operators:
            return f"{quoted(rest)} is an operator", f"write {rest}=VARIANT or {rest}@TIER"
        return f"there is no tier or pool {quoted(rest)}", _near(rest, targets)
    return Question(text, name or None, place=rest)


def _near(word: str, known: Sequence[str]) -> str:
    return did_you_mean(word, list(known)) or f"known names: {', '.join(dict.fromkeys(known))}"


class _RequirementLocator:
    """Maps the requirements of a problem to locations in the project's documents."""

    def __init__(self, project: AnyProject, locations: DocumentLocations) -> None:
        self.project, self.locations = project, locations

    def exclusive(self, problem: Problem) -> tuple[tuple[str, ...], ...]:
        """Exclusive pools (one operator per worker), grouped by the document value that makes them exclusive.

        That is a pool's own `sharing`, or the `sharing` of `limits` for all other pools.
        """
        workers = self.project.infrastructure.workers
        names = [pool.name for pool in problem.pools if pool.sharing is Sharing.EXCLUSIVE]
        own = tuple((name,) for name in names if workers[name].sharing is not None)
        rest = tuple(name for name in names if workers[name].sharing is None)
        return (*own, rest) if rest else own

    def locate(self, explanation: Explanation) -> dict[Requirement, tuple[Location, ...]]:
        """Locations of all requirements mentioned in an explanation."""
        conflicts = [explanation.conflict, *(answer.conflict for answer in explanation.why_not)]
        mentioned = [limit.requirement for limit in explanation.limits]
        for conflict in conflicts:
            mentioned += [*conflict.members, *conflict.remaining] if conflict is not None else []
        return {
            requirement: tuple(self.locations.locate(*path) for path in self._paths(requirement))
            for requirement in mentioned
        }

    def _paths(self, requirement: Requirement) -> list[tuple[Any, ...]]:
        kind, subjects = requirement.kind, requirement.subjects
        paths: dict[RequirementKind, Callable[[], list[tuple[Any, ...]]]] = {
            RequirementKind.ACCURACY: lambda: [self._accuracy(_document(*subjects))],
            RequirementKind.MEAN_ACCURACY: lambda: [self._mean_accuracy(_document(*subjects))],
            RequirementKind.SURVIVE: lambda: [(_document(*subjects[1:]), "slo", "survive")],
            RequirementKind.MARGIN: lambda: [self._margin()],
            RequirementKind.BUDGET: lambda: [self._budget()],
            RequirementKind.LIMIT: lambda: [self._limit(subjects[0])],
            RequirementKind.LATENCY_P99: lambda: [(_document(*subjects), "slo", "latency_p99")],
            RequirementKind.RATE: lambda: [
                (document, "sources", name, "rate") for document, name in map(_split_name, subjects)
            ],
            RequirementKind.UTILISATION: lambda: [("infrastructure", "limits", "utilisation")],
            RequirementKind.SHARING: lambda: [self._sharing(subjects[0])],
            RequirementKind.RESIDENCY: lambda: self._residency(*subjects),
            RequirementKind.BANDWIDTH: lambda: [("infrastructure", "links", self._link(subjects), "bandwidth")],
            RequirementKind.MEMORY: lambda: [("infrastructure", "workers", subjects[0], "memory")],
            RequirementKind.DEVICE_MEMORY: lambda: [("infrastructure", "workers", subjects[0], "device_memory")],
            RequirementKind.COUNT: lambda: [("infrastructure", "workers", subjects[0], "count")],
        }
        return paths[kind]()

    def _accuracy(self, document: str) -> tuple[Any, ...]:
        least = (document, "slo", "accuracy", "least")
        return least if self.locations.locate(*least).written is not None else least[:-1]

    def _mean_accuracy(self, document: str) -> tuple[Any, ...]:
        mean = (document, "slo", "accuracy", "mean")
        return mean if self.locations.locate(*mean).written is not None else (document, "slo", "mean_accuracy")

    def _margin(self) -> tuple[Any, ...]:
        """Where the margin is stated: of several workflows, in the first that has one."""
        if isinstance(self.project, Project):
            return ("workflow", "slo", "margin")
        stated = (name for name, one in self.project.workflows.items() if one.workflow.slo.margin.text)
        return (next(stated, "workflow"), "slo", "margin")

    def _sharing(self, pool: str) -> tuple[Any, ...]:
        own = self.project.infrastructure.workers[pool].sharing is not None
        return ("infrastructure", "workers", pool, "sharing") if own else ("infrastructure", "limits", "sharing")

    def _budget(self) -> tuple[Any, ...]:
        if isinstance(self.project, MultiWorkflowProject):
            return ("infrastructure", "limits", "budget")
        return ("workflow", "slo", "budget")

    def _limit(self, resource: str) -> tuple[Any, ...]:
        return self._budget() if resource == Objective.COST else ("infrastructure", resource, "limit")

    def _residency(self, name: str, downstream: str | None = None) -> list[tuple[Any, ...]]:
        """Document paths that restrict where data may go.

        For an operator its `tiers`; for the edge `name` -> `downstream` the `stays_in` of the edge and of its source.
        """
        document, name = _split_name(self._written(name))
        if downstream is None:
            return [(document, "operators", name, "tiers")]
        downstream = _split_name(self._written(downstream))[1]
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

    def _written(self, name: str) -> str:
        """The name in the documents of a source or operator, which may be one of an audit."""
        workflow, separator, local = name.rpartition(WORKFLOW_SEPARATOR)
        several = self.project.workflows if isinstance(self.project, MultiWorkflowProject) else {"": self.project}
        is_audited = several[workflow].workflow.slo.audit is not None
        return f"{workflow}{separator}{local.removeprefix(AUDIT_PREFIX)}" if is_audited else name

    def _link(self, ends: tuple[str, ...]) -> int:
        links = self.project.infrastructure.links
        return next(i for i, link in enumerate(links) if (link.upstream_tier, link.downstream_tier) == ends)


def _document(workflow: str = "") -> str:
    """Name under which `DocumentLocations` knows a workflow's document; `workflow` is empty for a single workflow."""
    return workflow or "workflow"


def _split_name(name: str) -> tuple[str, str]:
    """Split the qualified name of a source or operator into the document's name and the name within it."""
    workflow, _, own = name.rpartition(WORKFLOW_SEPARATOR)
    return _document(workflow), own


_UNITS: Mapping[str, Unit] = {
    Objective.COST: PRICE_PER_H,
    Objective.ENERGY: POWER,
    Objective.CARBON: CARBON_PER_H,
    RequirementKind.BUDGET: PRICE_PER_H,
    RequirementKind.LATENCY_P99: DURATION,
    RequirementKind.BANDWIDTH: BANDWIDTH,
    RequirementKind.MEMORY: SIZE,
    RequirementKind.DEVICE_MEMORY: SIZE,
}


def _setting_text(problem: Problem, requirement: Requirement, index: int, value: float | None) -> str:
    kind = requirement.kind
    if value is None:
        return _dropped_text(problem, requirement)
    if kind is RequirementKind.RATE:
        return _rounded(RATE, problem.source_by_name[requirement.subjects[index]].rate_per_s * value, up=False)
    if kind is RequirementKind.DEVICE_MEMORY:
        pool = problem.pool_by_name[requirement.subjects[index]]
        share = Device(pool.device, pool.device_options).share
        if share is not None and share.kind == "mig":
            return "null"  # its profile states its memory, whatever the whole device has
        value /= share.fraction if share is not None else 1.0
    of = requirement.subjects[0] if kind is RequirementKind.LIMIT else kind
    if of in _UNITS:
        return _rounded(_UNITS[of], value, up=True)
    if kind in (RequirementKind.ACCURACY, RequirementKind.MEAN_ACCURACY):
        return f"{math.floor(value * ACCURACY_STEPS) / ACCURACY_STEPS:.10g}"
    return f"{math.ceil(value * 1e4) / 1e4:g}"


def _dropped_text(problem: Problem, requirement: Requirement) -> str:
    if requirement.kind is RequirementKind.SURVIVE:
        kind, *workflow = requirement.subjects
        survives = problem.slo_by_workflow["".join(workflow)].survives
        left = [f"1 {loss}" for loss in survives if loss.value != kind]
        return f"[{', '.join(left)}]" if left else "null"
    return "shared" if requirement.kind is RequirementKind.SHARING else "null"


def _rounded(unit: Unit, value: float, *, up: bool) -> str:
    """Format a value with `DIGITS` significant digits, rounding up if `up`, otherwise down."""
    text = format_quantity(unit, value, DIGITS)
    read = parse_quantity(unit, text)
    if read == value or (read > value) == up:
        return text
    return format_quantity(unit, value * (1 + (6e-5 if up else -6e-5)), DIGITS)
