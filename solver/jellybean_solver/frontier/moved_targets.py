"""The accuracy target that a curve moves: of the only workflow, or one target of some of several workflows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.model.accuracy import AccuracyModel
from jellybean_solver.model.multi_workflow import all_served, with_slos
from jellybean_solver.model.plan import Plan
from jellybean_solver.model.problem import Objective, Problem
from jellybean_solver.model.targets import Slo
from jellybean_solver.model.workflow import Source
from jellybean_solver.planning.requirements import scaled

Change = Callable[[Slo], Slo]


@dataclass(frozen=True, slots=True)
class MovedTargets:
    """`workflows`: those of several whose target is moved; their accuracy is that of the least accurate of them.

    Curves serve all workflows, whatever they are worth: leaving one out would be the cheapest for any target.
    """

    problem: Problem
    workflows: tuple[str, ...] = ()

    @classmethod
    def of(cls, problem: Problem, names: Sequence[str] = ()) -> MovedTargets:
        """The targets of workflows, by default of all."""
        return cls(problem, tuple(names) or tuple(workflow.name for workflow in problem.workflows))

    @property
    def label(self) -> str:
        """Whose target is moved, as the end of a label: ` of shop`; empty for the only workflow."""
        if not self.workflows:
            return ""
        return " of each workflow" if self.is_all else f" of {', '.join(self.workflows)}"

    @property
    def is_all(self) -> bool:
        """True if all workflows are moved."""
        return len(self.workflows) == len(self.problem.workflows)

    @property
    def sources(self) -> Sequence[Source]:
        """The sources of what is moved."""
        of, names = self.problem.workflow_of, self.workflows or ("",)
        return [source for source in self.problem.sources if of(source.name) in names]

    @property
    def slos(self) -> Sequence[Slo]:
        """The targets of the workflows that are moved."""
        own = [workflow.slo for workflow in self.problem.workflows if workflow.name in self.workflows]
        return own or [self.problem.slo]

    @property
    def is_mean(self) -> bool:
        """True if what is moved is a mean accuracy, so that requests of these workflows may get unlike variants."""
        means = any(slo.mean_accuracy is not None for slo in self.slos)
        return means or self.problem.objective is Objective.MEAN_ACCURACY

    @property
    def top(self) -> float | None:
        """Upper bound on the accuracy of every selection, in percent; None if it is known of none."""
        known = [model.upper_bound({}) for model in self._models()]
        return None if None in known else min(value for value in known if value is not None)

    def reached(self, plan: Plan) -> float | None:
        """The accuracy of a plan, in percent; None if it is not known."""
        if not plan.workflows:
            return plan.accuracy
        known = [workflow.accuracy for workflow in plan.workflows if workflow.name in self.workflows]
        return None if None in known else min((value for value in known if value is not None), default=None)

    def asked(self, moved: Change, others: Change = lambda slo: slo) -> Problem:
        """The problem at least cost, without a budget and limits of resources, with changed targets."""
        names = self.workflows or ("",)
        changed = with_slos(all_served(self.problem), lambda name, slo: (moved if name in names else others)(slo))
        return replace(changed, slo=replace(changed.slo, budget_usd_per_h=None), objective=Objective.COST, most={})

    def stated(self, plan: Plan, moved: Change) -> Plan:
        """The plan with the problem's targets, of which the moved ones are changed."""
        if not self.workflows:
            return replace(plan, slo=moved(self.problem.slo))
        slos = {one.name: moved(one.slo) if one.name in self.workflows else one.slo for one in self.problem.workflows}
        workflows = tuple(replace(one, slo=slos[one.name]) for one in plan.workflows)
        return replace(plan, slo=self.problem.slo, workflows=workflows)

    def scaled(self, problem: Problem, factor: float) -> Problem:
        """The problem with the rates of what is moved multiplied by a factor."""
        return scaled(problem, factor, {source.name for source in self.sources})

    def _models(self) -> Sequence[AccuracyModel]:
        return [self.problem.accuracy_of(name) for name in self.workflows or ("",)]


def at_any_latency(slo: Slo) -> Slo:
    """The targets without that of the p99 latency."""
    return replace(slo, latency_p99_s=None)
