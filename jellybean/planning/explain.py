"""Explain a project's plan: the solver's explanation with simulated p99 latencies and document locations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jellybean.documents import AnyProject, Project, build_problem
from jellybean.documents.locations import DocumentLocations, Location, document_locations
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.planning.predicted_latency import Judged, judged_so_far, simulated_p99_s
from jellybean.planning.project_plan import more_accurate, plan_project, settle
from jellybean.planning.simulated_deadline import no_progress
from jellybean.planning.simulation import SEEDS
from jellybean.planning.soft_plan import reached_s
from jellybean.planning.soft_targets import as_hard, soft_targets
from jellybean.quantities import (
    BANDWIDTH,
    CARBON_PER_H,
    DURATION,
    POWER,
    PRICE_PER_H,
    RATE,
    SIZE,
    InvalidValueError,
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
    Conflict,
    DeadlineResult,
    Explanation,
    Objective,
    Part,
    Problem,
    Progress,
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
        explanation, document = self.explanation, self.explanation.to_dict()
        for limit, item in zip(explanation.limits, document["limits"], strict=True):
            item["places"] = [location.to_dict() for location in self.locations[limit.requirement]]
        stated = [document["conflict"], *(answer["conflict"] for answer in document["why_not"])]
        for conflict, values in zip(_conflicts(explanation), stated, strict=True):
            items = zip(conflict.relaxations, values["requirements"], strict=True) if conflict is not None else ()
            for relaxation, item in items:
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


def _conflicts(explanation: Explanation) -> Iterator[Conflict | None]:
    """That of the plan, and those of the answers to questions."""
    yield explanation.conflict
    yield from (answer.conflict for answer in explanation.why_not)


def explain_project(
    project: AnyProject,
    overrides: Sequence[str] = (),
    why_not: Sequence[str] = (),
    *,
    time_limit_s: float | None = None,
    progress: Progress = no_progress,
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
    locator, step = _RequirementLocator(project, document_locations(project, overrides)), [0.0, 1.0]

    def advance(done: float, total: float, label: str) -> None:
        step[:] = done, total
        progress(done, total, label)

    def keep_deadline(
        changed: Problem, cheapest: Solution, late: bool, limit_s: float | None, thorough: bool
    ) -> DeadlineResult:
        """As `plan` does: a plan in time if the cheapest is late; without a limit one more accurate of equal cost."""
        if not late and not changed.survives:
            return DeadlineResult(cheapest if limit_s is not None else more_accurate(changed, cheapest))

        def searched(done: float, total: float, label: str) -> None:
            if thorough:
                progress(step[0] + done / total, step[1], label)

        settled = settle(changed, cheapest, DEFAULT_GAP, limit_s, thorough=thorough, progress=searched)
        if settled.solution.plan is None or settled.reasons:
            return DeadlineResult(None, settled.fastest)
        return DeadlineResult(settled.solution)

    settings = ResolveSettings(
        time_limit_s=left_s,
        clock=time.monotonic,
        p99_s=lambda plan, seed: simulated_p99_s(plan, seed)[0],
        seeds=SEEDS,
        keep_deadline=keep_deadline,
        advance=advance,
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


def parse_questions(problem: Problem, texts: Sequence[str]) -> tuple[Question, ...]:
    """Parse OPERATOR=VARIANT, TIER, POOL, OPERATOR@TIER and OPERATOR@POOL.

    DocumentError lists all invalid questions.
    """
    parsed, wrong = list[Question](), list[DocumentProblem]()
    for text in texts:
        try:
            parsed.append(_question(problem, text.strip()))
        except InvalidValueError as error:
            wrong.append(DocumentProblem(f"--why-not {text}", None, None, "", error.message, error.hint))
    if wrong:
        raise DocumentError(wrong)
    return tuple(parsed)


def _question(problem: Problem, text: str) -> Question:
    """Parse one question; InvalidValueError if it names something unknown."""
    operators, sign = problem.operator_by_name, "=" if "=" in text else "@" if "@" in text else ""
    name, _, asked = (part.strip() for part in text.partition(sign)) if sign else ("", "", text)
    if sign and name not in operators:
        raise _unknown("there is no operator", name, list(operators))
    known, unknown = [*problem.tiers, *(pool.name for pool in problem.pools)], "there is no tier or pool"
    if sign == "=":
        own, unknown = operators[name], f"operator {name} has no variant"
        known = [*(one.name for one in own.variants), *(form.variant for form in own.forms if not form.is_cut)]
    elif asked in operators and asked not in known:
        raise InvalidValueError(f"{quoted(asked)} is an operator", f"write {asked}=VARIANT or {asked}@TIER")
    if asked not in known:
        raise _unknown(unknown, asked, known)
    return Question(text, name, variant=asked) if sign == "=" else Question(text, name or None, place=asked)


def _unknown(message: str, word: str, known: Sequence[str]) -> InvalidValueError:
    hint = did_you_mean(word, known) or f"known names: {', '.join(dict.fromkeys(known))}"
    return InvalidValueError(f"{message} {quoted(word)}", hint)


_OF_WORKFLOW = {  # keys below `slo`; where there are several, the first that is written
    RequirementKind.ACCURACY: (("accuracy", "least"), ("accuracy",)),
    RequirementKind.MEAN_ACCURACY: (("accuracy", "mean"), ("mean_accuracy",)),
    RequirementKind.LATENCY_P99: (("latency_p99",),),
    RequirementKind.SURVIVE: (("survive",),),
    RequirementKind.MARGIN: (("margin",),),
}


class _RequirementLocator:
    """Maps the requirements of a problem to locations in the project's documents."""

    def __init__(self, project: AnyProject, locations: DocumentLocations) -> None:
        self.project, self.locations = project, locations
        self.workflows: Mapping[str, Project] = {"": project} if isinstance(project, Project) else project.workflows

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
        mentioned = [limit.requirement for limit in explanation.limits]
        for conflict in filter(None, _conflicts(explanation)):
            mentioned += [*conflict.members, *conflict.remaining]
        return {
            requirement: tuple(self.locations.locate(*path) for path in self._paths(requirement))
            for requirement in mentioned
        }

    def _paths(self, requirement: Requirement) -> list[tuple[Any, ...]]:
        """Document paths of a requirement, the document first."""
        kind, subjects = requirement.kind, requirement.subjects
        if kind is RequirementKind.RESIDENCY:
            return self._residency(*subjects)
        if kind is RequirementKind.RATE:
            return [(document, "sources", name, "rate") for document, name in map(_split_name, subjects)]
        if kind is RequirementKind.LIMIT and subjects[0] != Objective.COST:
            return [("infrastructure", subjects[0], "limit")]
        if kind in (RequirementKind.BUDGET, RequirementKind.LIMIT):
            path = ("workflow", "slo") if "" in self.workflows else ("infrastructure", "limits")
            return [(*path, "budget")]
        if kind not in _OF_WORKFLOW:
            return [self._of_fleet(kind, *subjects)]
        if kind is RequirementKind.SURVIVE:
            subjects = subjects[1:]
        elif kind is RequirementKind.MARGIN:  # of several workflows, in the first that has one
            subjects = tuple(name for name, one in self.workflows.items() if one.workflow.slo.margin.text)[:1]
        paths = [("".join(subjects) or "workflow", "slo", *keys) for keys in _OF_WORKFLOW[kind]]
        return [next((path for path in paths if self.locations.locate(*path).written is not None), paths[-1])]

    def _of_fleet(self, kind: RequirementKind, name: str = "", end: str = "") -> tuple[Any, ...]:
        """The path of a limit, a pool's figure, or the bandwidth of the link from a tier to another one."""
        fleet, (before, _, after) = self.project.infrastructure, name.partition(WORKFLOW_SEPARATOR)
        if not name or (kind is RequirementKind.SHARING and fleet.workers[name].sharing is None):
            return ("infrastructure", "limits", kind.value)
        if kind is not RequirementKind.BANDWIDTH:
            return (before, "workers", after, kind.value) if after else ("infrastructure", "workers", name, kind.value)
        if after:  # the tier of a site
            return (after, "links", end, kind.value)
        ends = [(link.upstream_tier, link.downstream_tier) for link in fleet.links]
        return ("infrastructure", "links", ends.index((name, end)), kind.value)

    def _residency(self, name: str, downstream: str | None = None) -> list[tuple[Any, ...]]:
        """Document paths that restrict where data may go.

        For an operator its `tiers`; for the edge `name` -> `downstream` the `stays_in` of the edge and of its source.
        """
        written = self.workflows[name.rpartition(WORKFLOW_SEPARATOR)[0]].workflow
        prefix = AUDIT_PREFIX if written.slo.audit is not None else ""  # of what may be of an audit
        (document, name), *ends = (_split_name(one, prefix) for one in (name, downstream) if one is not None)
        if not ends:
            return [(document, "operators", name, "tiers")]
        (_, end), source = ends[0], written.sources.get(name)
        paths: list[tuple[Any, ...]] = [
            (document, "operators", end, "inputs", index, "stays_in")
            for index, edge in enumerate(written.operators[end].inputs)
            if edge.upstream == name and edge.stays_in is not None
        ]
        is_stated = source is not None and source.stays_in is not None
        return [*paths, (document, "sources", name, "stays_in")] if is_stated else paths


def _split_name(name: str, prefix: str = "") -> tuple[str, str]:
    """The document's name and the name within it, without the prefix, of the name of a source or operator."""
    workflow, _, own = name.rpartition(WORKFLOW_SEPARATOR)
    return workflow or "workflow", own.removeprefix(prefix)


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
