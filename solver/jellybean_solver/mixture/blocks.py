"""Blocks: the requests of each workflow, which spread over ways of their own, on workers that all blocks share.

The audit of a workflow is a block, too: one selection, without targets, that is left out with its workflow and shed
after losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jellybean_solver.model.accuracy import AccuracyModel, EndToEnd
from jellybean_solver.model.problem import Objective, Problem, Terms
from jellybean_solver.model.streams import RequestStream, whole_streams
from jellybean_solver.model.targets import NO_TARGETS, LossKind, Slo


@dataclass(frozen=True, slots=True)
class Block:
    """One workflow of a problem, its only one, or its audit. `names`: its operators, in the problem's order.

    `least`: accuracy in percent of the selection that any request gets. `single`: all requests get one selection.
    `worth_usd_per_h`: it may be left out for so much; None: it must be served. `streams`: of which each is on one way.
    """

    workflow: str
    names: tuple[str, ...]
    accuracy: AccuracyModel
    slo: Slo
    least: float | None
    single: bool
    worth_usd_per_h: float | None = None
    streams: tuple[RequestStream, ...] = ()
    is_audit: bool = False

    @property
    def is_soft(self) -> bool:
        """True if its mean accuracy may be missed, at a penalty."""
        return self.slo.mean_accuracy is not None and self.slo.penalty_usd_per_h is not None


def blocks_of(problem: Problem) -> tuple[Block, ...]:
    """The blocks of a problem, in the order of its workflows."""
    names = tuple(operator.name for operator in problem.operators if not problem.is_of_audit(operator.name))
    streams = whole_streams(problem)
    if not problem.workflows:
        least, single = problem.slo.accuracy, not problem.may_mix
        return Block("", names, problem.accuracy, problem.slo, least, single, streams=streams), *_audits(problem)
    margin = problem.slo.accuracy or 0.0
    workflows = (
        Block(
            workflow.name,
            tuple(name for name in names if problem.workflow_of(name) == workflow.name),
            problem.accuracy_of(workflow.name),
            workflow.slo,
            None if workflow.slo.accuracy is None else workflow.slo.accuracy + margin,
            workflow.slo.mean_accuracy is None and problem.objective is not Objective.MEAN_ACCURACY,
            workflow.worth_usd_per_h,
            tuple(one for one in streams if one.workflow == workflow.name),
        )
        for workflow in problem.workflows
    )
    return *workflows, *_audits(problem)


def _audits(problem: Problem) -> Iterator[Block]:
    """The blocks of audits."""
    names: dict[str, list[str]] = {workflow: [] for workflow in problem.audits}
    for operator in problem.operators:
        if problem.is_of_audit(operator.name):
            names[problem.workflow_of(operator.name)].append(operator.name)
    for workflow, own in names.items():
        yield Block(workflow, tuple(own), EndToEnd((), {}), NO_TARGETS, None, single=True, is_audit=True)


def surviving(problem: Problem, blocks: Sequence[Block], kind: LossKind, of: Sequence[str]) -> frozenset[int]:
    """The numbers of the blocks whose targets hold after a loss: of a worker of a pool, a tier, or a link."""
    is_spot = kind is LossKind.WORKER and problem.pool_by_name[of[0]].terms is Terms.SPOT
    return frozenset(number for number, one in enumerate(blocks) if one.slo.survives_loss(kind, is_spot=is_spot))


def stream_counts(blocks: Iterable[Block]) -> Mapping[str, int]:
    """Operator -> the number of streams that its requests come in, of those that keep to one route."""
    return {name: streams.count for block in blocks for streams in block.streams for name in streams.operators}
