"""Rounding of one selection: integer worker counts near its relaxed point, or its exact MILP."""

from __future__ import annotations

from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.incumbent import DeadlineJudge
from jellybean_solver.fleet.integer_counts import Box
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.relaxation import Point, Relaxation
from jellybean_solver.fleet.rounding.near_milp import NearMilp
from jellybean_solver.fleet.settings import SearchSettings
from jellybean_solver.milp.highs_program import SolveLimits
from jellybean_solver.outcome import Clock, Selection
from jellybean_solver.small.assignment import Assignment

TRIES = 3  # most solves until all models fit onto workers
MOST_NODES = 50  # of the branch and bound of HiGHS, per solve


class SelectionRounding:
    """Rounds points of a relaxation. With a `judge`, plans leave its headroom free on links; lower bounds ignore it."""

    def __init__(
        self,
        relaxation: Relaxation,
        judge: DeadlineJudge | None,
        gap: float,
        clock: Clock,
        settings: SearchSettings,
    ) -> None:
        """`gap`: relative gap of the search."""
        self.relaxation, self.joint_lp, self.judge, self.clock = relaxation, relaxation.joint_lp, judge, clock
        self.settings, self.gap = settings, max(gap, settings.coarse_gap)

    @property
    def links(self) -> float:
        """The share of every link's bandwidth that plans may use."""
        return 1.0 if self.judge is None else 1.0 - self.judge.headroom

    def relax(self, box: Box) -> Point | None:
        """The optimum in the box with headroom on links; None if there is none, or time is up."""
        self.relaxation.links_within(self.links)
        try:
            return self.relaxation.solve(box)
        except OutOfTimeError:
            return None
        finally:
            self.relaxation.links_within(1.0)

    def near(self, point: Point, bound: float) -> Assignment | None:
        """A plan near a selection's relaxed point, None if none was found.

        `bound`: lower bound on all plans (USD per hour); a plan close to it ends the rounding. A chain that would put
        three models onto one worker gets another worker, and the program is solved again.
        """
        milp, best = NearMilp(self.joint_lp, point, self.links), None
        enough = bound / (1.0 - self.settings.near_enough * self.gap)
        for _ in range(TRIES):
            limits = SolveLimits(
                self.settings.rounding * self.gap, self.clock.left(), most_nodes=MOST_NODES, enough=enough
            )
            answer = milp.program.solve(limits)
            if answer.values is None:
                break
            staff = milp.staff(answer.values)
            found = staff.assignment()
            if found is not None and (best is None or found.cost < best.cost):
                best = found
            if (best is not None and best.cost <= enough) or not milp.make_room(staff):
                break
        return best

    def exact_milp(self, selection: Selection) -> ExactMilp | None:
        """The exact MILP of one selection, None if it cannot run. The accuracy target is not part of it."""
        joint_lp = JointLp(self.joint_lp.network, None, selection)
        return ExactMilp(joint_lp) if joint_lp.possible else None
