"""A problem of several workflows as one problem for each, and what they have in common.

A workflow needs only the tiers that its data can reach, and their pools that can run one of its operators. Pools and
limited links that two or more workflows can use are common; what only one can use is its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jellybean_solver.demand.demand import Tiers
from jellybean_solver.errors import SolverError
from jellybean_solver.milp.highs_program import Floats
from jellybean_solver.model.problem import Link, Pool, Problem, Sharing
from jellybean_solver.model.targets import Slo
from jellybean_solver.model.workflow import Operator, Source, Workflow


@dataclass(frozen=True)
class Split:
    """`parts`: a problem per workflow, in order; names keep the prefix WORKFLOW/.

    `shared`, `exclusive`: pools that several parts can use, by sharing. `links`: likewise, links of limited bandwidth.
    """

    problem: Problem
    parts: tuple[Problem, ...]
    shared: tuple[Pool, ...]
    exclusive: tuple[Pool, ...]
    links: tuple[Tiers, ...]

    @cached_property
    def worths(self) -> Floats:
        """USD per hour that each part is worth; inf if it must be served."""
        worths = [workflow.worth_usd_per_h for workflow in self.problem.workflows]
        return np.array([math.inf if worth is None else worth for worth in worths])

    @property
    def budget(self) -> float:
        """USD per hour that a plan may cost; inf without a limit."""
        stated = self.problem.slo.budget_usd_per_h
        return math.inf if stated is None else stated

    @property
    def common(self) -> frozenset[str]:
        """Names of the common pools."""
        return frozenset(pool.name for pool in (*self.shared, *self.exclusive))


def split(problem: Problem) -> Split:
    """Split a problem of several workflows. SolverError if it has only one."""
    if not problem.workflows:
        raise SolverError(f"problem {problem.name} is not of several workflows")
    margin = problem.slo.accuracy or 0.0
    sources: dict[str, list[Source]] = {workflow.name: [] for workflow in problem.workflows}
    operators: dict[str, list[Operator]] = {workflow.name: [] for workflow in problem.workflows}
    for source in problem.sources:
        sources[problem.workflow_of(source.name)].append(source)
    for operator in problem.operators:
        operators[problem.workflow_of(operator.name)].append(operator)
    fleet = _Fleet(problem)
    parts = []
    for workflow in problem.workflows:
        tiers = fleet.reached(source.tier for source in sources[workflow.name])
        pools = fleet.pools(operators[workflow.name], tiers)
        parts.append(
            replace(
                problem,
                name=workflow.name,
                tiers=tuple(sorted(tiers, key=problem.tier_index.__getitem__)),
                sources=tuple(sources[workflow.name]),
                operators=tuple(operators[workflow.name]),
                pools=pools,
                links=fleet.links(tiers),
                accuracy=problem.accuracy_of(workflow.name),
                slo=_targets(workflow, margin),
                sites={tier: problem.sites[tier] for tier in tiers if tier in problem.sites},
                workflows=(),
                stale_profiles=(),
                audit=workflow.audit,
            )
        )
    users = Counter(pool.name for part in parts for pool in part.pools)
    common = [pool for pool in problem.pools if users[pool.name] > 1]
    return Split(
        problem,
        tuple(parts),
        tuple(pool for pool in common if pool.sharing is Sharing.SHARED),
        tuple(pool for pool in common if pool.sharing is Sharing.EXCLUSIVE),
        _common_links(problem, parts),
    )


def _targets(workflow: Workflow, margin: float) -> Slo:
    least = workflow.slo.accuracy
    return replace(workflow.slo, accuracy=None if least is None else least + margin)


def _common_links(problem: Problem, parts: Sequence[Problem]) -> tuple[Tiers, ...]:
    users = Counter(link.tiers for part in parts for link in part.links)
    limited = (link.tiers for link in problem.links if link.bandwidth_bytes_per_s is not None)
    return tuple(ends for ends in limited if users[ends] > 1)


class _Fleet:
    """The tiers, links and pools of a problem, for quick lookup by workflow."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._above: dict[str, list[Link]] = {tier: [] for tier in problem.tiers}
        for link in problem.links:
            self._above[link.upstream_tier].append(link)
        self._place: Mapping[str, int] = {pool.name: number for number, pool in enumerate(problem.pools)}

    def reached(self, born: Iterable[str]) -> frozenset[str]:
        """Tiers that data of these tiers can reach, over one link or several."""
        found = set(born)
        waiting = list(found)
        while waiting:
            for link in self._above[waiting.pop()]:
                if link.downstream_tier not in found:
                    found.add(link.downstream_tier)
                    waiting.append(link.downstream_tier)
        return frozenset(found)

    def links(self, tiers: frozenset[str]) -> tuple[Link, ...]:
        """Links between these tiers."""
        return tuple(link for tier in tiers for link in self._above[tier] if link.downstream_tier in tiers)

    def pools(self, operators: Sequence[Operator], tiers: frozenset[str]) -> tuple[Pool, ...]:
        """Pools of these tiers of which one can run an operator."""
        found: set[int] = set()
        for operator in (part for one in operators for part in one.parts):
            allowed = tiers if operator.tiers is None else tiers & frozenset(operator.tiers)
            for variant in operator.variants:
                for name, times in variant.service.items():
                    number = self._place.get(name)
                    if number is not None and 1 in times:
                        pool = self._problem.pools[number]
                        if pool.tier in allowed and pool.count > 0:
                            found.add(number)
        return tuple(self._problem.pools[number] for number in sorted(found))
