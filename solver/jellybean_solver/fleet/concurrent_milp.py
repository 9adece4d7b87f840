"""The exact MILP beside the branch and bound: each gives the other what it finds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from threading import Event

from jellybean_solver.demand.demand import Network
from jellybean_solver.fleet.exact_milp import ExactMilp
from jellybean_solver.fleet.incumbent import is_accurate_enough
from jellybean_solver.fleet.joint_lp import JointLp
from jellybean_solver.migration.running_plan import RunningPlan
from jellybean_solver.milp.concurrent_solve import ConcurrentSolve
from jellybean_solver.milp.highs_program import SolveLimits
from jellybean_solver.outcome import Clock, Selection
from jellybean_solver.small.assignment import Assignment, Attempt

POLL_S = 0.05  # between two looks at the clock while nothing else is left to do


class ConcurrentMilp:
    """Runs of the exact MILP in a thread, one after the other, each for plans that cost less than its cutoff.

    `bound`: USD per hour that no plan falls below, by all runs so far.
    """

    def __init__(
        self,
        network: Network,
        target: float | None,
        fixed: Selection,
        clock: Clock,
        *,
        running: RunningPlan | None = None,
        budget: float = math.inf,
        ended: Event | None = None,
    ) -> None:
        """From a `running` plan the bound is on the cost with the migration; `budget` is on the running cost alone.

        `ended`: set when a run has ended; one for several programs lets their user wait for any of them.
        """
        self._problem, self._running, self._budget = (network, target, fixed), running, budget
        self._clock, self._is_accurate = clock, partial(is_accurate_enough, network.problem, target)
        self._run: ConcurrentSolve | None = None
        self._milp: ExactMilp | None = None
        self._quick, self._ended = False, ended or Event()
        self.cutoff = self.value = math.inf  # of the last run: USD per hour, and of the best plan that it knows
        self.bound = 0.0
        self.finished = False  # the last run has ended, at its gap or at the limit
        self.runs = 0

    def start(self, cutoff: float, gap: float, *, quick: bool = False) -> None:
        """Begin a run, to a relative gap; a run that goes on is ended first. `quick`: as of `SolveLimits`."""
        self.close()
        self._quick = quick
        if self._milp is None:
            self._milp = self._built()
        if self._milp is None:
            self.bound, self.finished = math.inf, True
            return
        self.cutoff, self.value, self.finished = cutoff, cutoff, False
        self.runs += 1
        self._ended.clear()
        limits = SolveLimits(gap, self._clock.left(), cutoff, quick=self._quick)
        self._run = ConcurrentSolve(self._milp.program, limits, self._ended.set)
        self._run.start()

    def _built(self) -> ExactMilp | None:
        """The program; None if no selection can do."""
        joint_lp = JointLp(*self._problem, few_workers=0)
        if not joint_lp.possible:
            return None
        milp = ExactMilp(joint_lp)
        if self._running is not None:
            milp.program.limit_cost(self._budget)
            milp.add_migration(self._running)
        return milp

    def found(self) -> Iterator[tuple[Selection, Assignment]]:
        """Plans found since the last call; the bound is brought up to date."""
        if self._run is None or self._milp is None or self.finished:
            return
        answer = self._run.answer  # before the incumbents: all are there when it is
        self.bound = max(self.bound, self._run.bound)
        missed: Selection | None = None
        for values in self._run.incumbents():
            staff = self._milp.staff(values)
            if not self._is_accurate(staff.selection):
                missed = staff.selection
            elif (assignment := staff.assignment()) is not None:
                self.value = min(self.value, assignment.cost)
                yield staff.selection, assignment
        if missed is not None:
            self._milp.exclude(missed)  # less accurate than the rows take it for (accuracy_rows.py)
            self.start(self.cutoff, 0.0, quick=self._quick)
        elif answer is not None:
            self.finished = True

    def attempts(self) -> Iterator[tuple[Selection, Attempt]]:
        """The same for the beam search; none from a running plan, as the MILP knows only the least migration cost."""
        for selection, assignment in self.found():
            if self._running is None:
                yield selection, Attempt(assignment, -math.inf)

    @property
    def is_running(self) -> bool:
        """Whether a run goes on."""
        return self._run is not None and not self.finished

    def wait(self) -> None:
        """Until a run has ended, or for a moment."""
        self._ended.wait(POLL_S)
        self._ended.clear()

    def wake(self) -> None:
        """End a `wait`: something else has ended."""
        self._ended.set()

    def close(self) -> None:
        """End the run that goes on."""
        if self._run is not None:
            self._run.stop()
            self.bound = max(self.bound, self._run.bound)
            self._run = None
