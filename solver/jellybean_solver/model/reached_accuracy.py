"""The accuracy that the requests of each workflow get from a plan, and whether it is what the targets ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jellybean_solver.model.problem import Problem
from jellybean_solver.model.targets import LIMIT_TOLERANCE
from jellybean_solver.outcome import Selection

Shares = Sequence[tuple[Selection, float]]  # selections, each with the fraction of a workflow's requests that get it
Known = Sequence[tuple[float | None, float]]  # accuracies in percent, None: not in the profile; with their fractions


def reached(problem: Problem, selections: Shares) -> Mapping[str, Known]:
    """Workflow -> the accuracies that its requests get; the only workflow is called ""."""
    found: dict[str, list[tuple[float | None, float]]] = {name: [] for name in problem.slo_by_workflow}
    models = {name: problem.accuracy_of(name) for name in found}
    for selection, share in selections:
        for name in dict.fromkeys(map(problem.workflow_of, selection)):
            if name in found:
                found[name].append((models[name].value(selection), share))
    return found


def mean(known: Known) -> float | None:
    """The mean of all requests; None if there are none, or the accuracy of some is not in the profile."""
    values = [(value, share) for value, share in known if value is not None]
    if not values or len(values) < len(known):
        return None
    return values[0][0] if len(values) == 1 else sum(value * share for value, share in values)


def accuracy_violations(problem: Problem, selections: Shares) -> Iterator[str]:
    """Sentences on accuracies that are below their targets by more than a tolerance."""
    found = reached(problem, selections)
    more = (problem.slo.accuracy or 0.0) if problem.workflows else 0.0
    for name, slo in problem.slo_by_workflow.items():
        known, of = found[name], f"{name}: " if name else ""
        if slo.accuracy is not None:
            for value, _ in known:
                yield from _below(value, slo.accuracy + more, of)
        if slo.hard_mean is not None:
            yield from _below(mean(known), slo.hard_mean, f"{of}mean ")


def _below(accuracy: float | None, target: float, of: str) -> Iterator[str]:
    if accuracy is None:
        yield f"{of}the accuracy of this selection is not in the profile; the target is {target:g}"
    elif accuracy < target - LIMIT_TOLERANCE * max(1.0, abs(target)):
        yield f"{of}accuracy {accuracy:g} is below the target of {target:g}"
