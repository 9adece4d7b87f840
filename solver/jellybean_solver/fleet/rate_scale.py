"""The largest factor on all rates that the fleet can serve: the exact MILP with that factor as its objective."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jellybean_solver.demand.demand import Network, Tiers
from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.proposal import solve_accurately
from jellybean_solver.fleet.settings import SearchLimits
from jellybean_solver.outcome import Outcome, Selection, Termination, termination_of

PROVEN = 1e-7  # of the scale factor: a value this close to its bound counts as optimal


@dataclass(frozen=True, slots=True)
class RateScale:
    """The largest feasible factor (at most 1) on all rates, and the load at these rates.

    `busy`: pool -> number of busy workers; `carried`: limited link -> share of its bandwidth used.
    """

    scale: float
    busy: Mapping[str, float]
    carried: Mapping[Tiers, float]


def largest_rate_scale(network: Network, target: float | None, limits: SearchLimits) -> Outcome[RateScale]:
    """Maximise the scale factor over all selections that reach the target and all plans within the budget.

    The value and the bound of the outcome are minus the factor, as outcomes are minimised.
    """
    joint_lp = JointLp(network, target, {})
    if not joint_lp.possible:
        return Outcome(math.inf, None, None, math.inf, 0, Termination.OPTIMAL)
    milp = ExactMilp(joint_lp)
    milp.maximise_rates(limits.budget)
    answer, staff = solve_accurately(milp, target, limits)
    late = limits.clock.left() == 0.0
    if answer.values is None or staff is None:
        return Outcome(math.inf, None, None, answer.bound, 1, termination_of(math.inf, answer.bound, out_of_time=late))
    value = answer.value
    bound = value if value - answer.bound <= PROVEN else answer.bound
    carried = joint_lp.program.matrix().activities(answer.values)[joint_lp.link_rows]
    links = dict(zip(joint_lp.limited_links, np.asarray(carried).tolist(), strict=True))
    found = RateScale(max(0.0, -value), _busy(network, staff.selection, milp, answer.values), links)
    return Outcome(value, found, staff.selection, bound, 1, termination_of(value, bound, out_of_time=late))


def _busy(network: Network, selection: Selection, milp: ExactMilp, values: np.ndarray) -> Mapping[str, float]:
    assignment = milp.staff(values).assignment()
    busy = {pool.name: 0.0 for pool in network.pools}
    workers = network.demand(selection).workers
    for group in assignment.groups if assignment is not None else ():
        busy[group.pool] += sum(share * workers[name][group.pool] for name, share in group.shares.items())
    return busy
