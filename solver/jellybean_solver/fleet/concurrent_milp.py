"""The exact MILP in a thread beside the branch and bound: they exchange incumbents and bounds."""

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
from jellybean_solver.small.assignment import Assignment

POLL_S = 0.05  # seconds: longest `wait`, after which the caller checks its clock


class ConcurrentMilp:
    """Solves the exact MILP in a thread; one run after the other, each for plans that cost less than its cutoff.

    `bound`: lower bound on the cost of all plans, USD per hour: the highest of all runs so far.
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
    ) -> None:
        """`target`: accuracy in percent; `fixed`: operator -> variant, where given.

        With a `running` plan costs and bounds include the migration from it; `budget` (USD per hour) never does.
        """
        self._problem, self._running, self._budget = (network, target, fixed), running, budget
        self._clock, self._is_accurate = clock, partial(is_accurate_enough, network.problem, target)
        self._run: ConcurrentSolve | None = None
        self._milp: ExactMilp | None = None
        self._ended = Event()
        self.cutoff = self.value = math.inf  # USD per hour: the last run's cutoff, its best plan
        self.bound = 0.0
        self.finished = False  # the last run has ended, at its gap or its time limit
        self.runs = 0

    def start(self, cutoff: float, gap: float) -> None:
        """Start a run for plans below `cutoff` (USD per hour), to a relative gap; stops a run in progress."""
        self.close()
        if self._milp is None:
            self._milp = self._built()
        if self._milp is None:
            self.bound, self.finished = math.inf, True
            return
        self.cutoff, self.value, self.finished = cutoff, cutoff, False
        self.runs += 1
        self._ended.clear()
        limits = SolveLimits(gap, self._clock.left(), cutoff)
        self._run = ConcurrentSolve(self._milp.program, limits, self._ended.set)

    def _built(self) -> ExactMilp | None:
        """The MILP; None if no selection is feasible."""
        joint_lp = JointLp(*self._problem)
        if not joint_lp.possible:
            return None
        milp = ExactMilp(joint_lp)
        if self._running is not None:
            milp.program.limit_cost(self._budget)
            milp.add_migration(self._running)
        return milp

    def found(self) -> Iterator[tuple[Selection, Assignment]]:
        """Selections with plans found since the last call; also updates `bound` and `finished`.

        With a running plan the cost of an assignment has only a lower bound on that of its migration.
        """
        if self._run is None or self._milp is None or self.finished:
            return
        answer = self._run.answer  # read first: once it is set, all incumbents are there
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
            self._milp.exclude(missed)  # the accuracy rows overestimate it (accuracy_rows.py)
            self.start(self.cutoff, 0.0)
        elif answer is not None:
            self.finished = True

    def wait(self) -> None:
        """Block until a run ends, at most `POLL_S`."""
        self._ended.wait(POLL_S)
        self._ended.clear()

    def wake(self) -> None:
        """End a `wait` early."""
        self._ended.set()

    def close(self) -> None:
        """Stop the run in progress, if any; its bound is kept."""
        if self._run is not None:
            self._run.stop()
            self.bound = max(self.bound, self._run.bound)
            self._run = None
