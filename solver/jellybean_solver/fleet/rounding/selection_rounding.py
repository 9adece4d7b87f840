"""Rounding of one selection: integer worker counts near its relaxed point, by heuristics or by its exact MILP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jellybean_solver.errors import OutOfTimeError
from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.incumbent import DeadlineJudge
from jellybean_solver.fleet.integer_counts import Box
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.fleet.relaxation import Point, Relaxation
from jellybean_solver.fleet.rounding.exclusive_rounding import rounded
from jellybean_solver.fleet.rounding.shared_rounding import whole_near
from jellybean_solver.fleet.settings import SearchSettings
from jellybean_solver.milp.highs_program import Floats
from jellybean_solver.outcome import Clock, Selection
from jellybean_solver.small.assignment import Assignment


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

    def relax(self, box: Box) -> Point | None:
        """The optimum in the box with headroom on links; None if there is none, or time is up."""
        try:
            with self._headroom():
                return self.relaxation.solve(box)
        except OutOfTimeError:
            return None

    def near(self, box: Box, point: Point, bound: float, *, gap: float = 0.0) -> Assignment | None:
        """A plan near a selection's relaxed point, None if none was found.

        If models do not fit onto the workers, the relaxation is solved again with ever fewer workers. `bound`: lower
        bound on all plans (USD per hour); a plan close to it ends the rounding. `gap`: relative loss that is accepted.
        """
        settings = self.settings
        with self._headroom():
            if not self.joint_lp.kinds.exclusive.any():
                found = whole_near(
                    self.joint_lp,
                    point,
                    self.relaxation.most,
                    gap=max(gap, settings.quick_rounding * self.gap),
                    enough=bound / (1.0 - settings.near_enough * self.gap),
                    limit_s=self.clock.left,
                )
                if found is not None:
                    return found
            for share in settings.memory_headroom:
                most = self.relaxation.less_room(point, share)
                near = point if share == 0.0 else self._within(box, most)
                if near is None:
                    return None
                fine = settings.fine_rounding * self.gap
                found = rounded(self.joint_lp, near, most, gap=fine, limit_s=self.clock.left)
                if found is not None:
                    return found
            return None

    def finely(self, point: Point, bound: float) -> Assignment | None:
        """As `near`, for shared classes only, with more worker classes to choose from and to a smaller gap."""
        with self._headroom():
            return whole_near(
                self.joint_lp,
                point,
                self.relaxation.most,
                gap=self.settings.fine_rounding * self.gap,
                enough=bound / (1.0 - self.settings.near_enough * self.gap),
                limit_s=self.clock.left,
                thorough=True,
            )

    def exact_milp(self, selection: Selection) -> ExactMilp | None:
        """The exact MILP of one selection, None if it cannot run. The accuracy target is not part of it."""
        joint_lp = JointLp(self.joint_lp.network, None, selection)
        return ExactMilp(joint_lp) if joint_lp.possible else None

    @contextmanager
    def _headroom(self) -> Iterator[None]:
        if self.judge is None:
            yield
            return
        self.relaxation.links_within(1.0 - self.judge.headroom)
        try:
            yield
        finally:
            self.relaxation.links_within(1.0)

    def _within(self, box: Box, most: Floats) -> Point | None:
        try:
            return self.relaxation.solve_within(box, most)
        except OutOfTimeError:
            return None
