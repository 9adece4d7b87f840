"""A mixed-integer program, stored as arrays and solved by HiGHS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np
import numpy.typing as npt

from jellybean_solver.errors import SolverError
from jellybean_solver.milp.interruptible_run import run_interruptibly

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

FEASIBILITY_TOLERANCE = 1e-7  # of rows and integers. 1e-6 rounds small operators away; at 1e-9 HiGHS cuts optima off
INFEASIBLE = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)
PRESOLVE_FAILURES = (  # texts of HiGHS' failures in presolve: one small program in thousands, with nearly tight rows
    highspy.HighsModelStatus.kPresolveError,
    highspy.HighsModelStatus.kSolveError,
    highspy.HighsModelStatus.kPostsolveError,
    highspy.HighsModelStatus.kUnknown,
)
ENDED = (
    highspy.HighsModelStatus.kOptimal,
    highspy.HighsModelStatus.kTimeLimit,
    highspy.HighsModelStatus.kSolutionLimit,  # of nodes
    highspy.HighsModelStatus.kObjectiveTarget,
    highspy.HighsModelStatus.kObjectiveBound,
    highspy.HighsModelStatus.kInterrupt,
)

DEAR = ("mip_heuristic_run_rins", "mip_heuristic_run_root_reduced_cost")
SPARED: dict[str, bool | float] = {
    **dict.fromkeys((*DEAR, "mip_heuristic_run_rens", "mip_heuristic_run_feasibility_jump"), False),
    **dict.fromkeys(("mip_detect_symmetry", "mip_allow_restart", "mip_allow_cut_separation_at_nodes"), False),
    "mip_heuristic_effort": 0.0,
}


BAD_NUMBERS = (
    "HiGHS does not take the numbers of this problem: a price, time, size or rate is so large or so small that it must "
    "be a mistake; check its unit"
)


@dataclass(frozen=True, slots=True)
class ProgramSolution:
    """`values`: one per column, None if no point was found; `value`: their objective; `bound`: lower bound on it.

    `bound` is inf if infeasibility is proven, -inf if time ended before any bound was known.
    """

    values: Floats | None
    value: float
    bound: float


@dataclass(frozen=True, slots=True)
class SolveLimits:
    """When a run may end. `gap`: relative; `cutoff`: points with a higher objective are not searched.

    `enough`: the first point with at most this objective ends the run. `quick`: switch off the heuristics that solve
    large sub-MILPs. `tiny`: leave out all that pays for larger programs only: heuristics, symmetry, restarts, cuts.
    `presolve`: reduce the program first.
    """

    gap: float = 0.0
    time_limit_s: float | None = None
    cutoff: float = math.inf
    most_nodes: int | None = None
    enough: float = -math.inf
    quick: bool = False
    tiny: bool = False
    presolve: bool = True


NO_LIMITS = SolveLimits()


@dataclass(frozen=True, slots=True)
class Matrix:
    """A program as sparse arrays. Entry i is `values[i]` in row `rows[i]` and column `columns[i]`.

    Rows range from `low` to `high`; columns from 0 to `most`, with objective coefficients `cost`.
    """

    rows: Indices
    columns: Indices
    values: Floats
    low: Floats
    high: Floats
    cost: Floats
    most: Floats

    def signed(self, duals: Floats) -> Floats:
        """Duals clipped to the sign that each row's range allows."""
        upward = np.where(np.isfinite(self.low), duals, np.minimum(duals, 0.0))
        return np.where(np.isfinite(self.high), upward, np.maximum(upward, 0.0))

    def activities(self, values: Floats) -> Floats:
        """Values of the rows at a point."""
        found: Floats = np.bincount(self.rows, self.values * values[self.columns], len(self.low)).astype(float)
        return found

    def sides(self, duals: Floats) -> float:
        """The rows' part of the dual objective: row sides times duals of the right sign, summed."""
        side = np.where(duals > 0, self.low, self.high)
        return float(np.where(duals != 0, side, 0.0) @ duals)

    def left(self, duals: Floats) -> Floats:
        """Reduced costs of the columns: cost minus the matrix's transpose times `duals`."""
        return self.cost - np.bincount(self.columns, self.values * duals[self.rows], len(self.cost))


def above(bound: float, cutoff: float) -> float:
    """Lower bound proven by a search with a cutoff: points that it pruned cost more than `cutoff`."""
    return math.nextafter(cutoff, math.inf) if bound > cutoff else bound


def run(model: highspy.Highs) -> None:
    """Solve; if HiGHS fails, once more without presolve."""
    run_interruptibly(model)
    if model.getModelStatus() in PRESOLVE_FAILURES:
        model.clearSolver()
        model.setOptionValue("presolve", "off")
        run_interruptibly(model)


@dataclass
class Program:
    """Minimise cost x subject to low <= A x <= high. Columns and rows are added in blocks and named by index."""

    cost: list[Floats] = field(default_factory=list)
    low: list[Floats] = field(default_factory=list)
    high: list[Floats] = field(default_factory=list)
    integer: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    columns: int = 0
    row_low: list[float] = field(default_factory=list)
    row_high: list[float] = field(default_factory=list)
    entries: list[tuple[Indices, Indices, Floats]] = field(default_factory=list)  # rows, columns, values

    def add_columns(
        self,
        cost: Sequence[float] | Floats,
        high: float | Sequence[float] | Floats = math.inf,
        *,
        integer: bool = False,
    ) -> Indices:
        """Add variables from 0 to `high`; returns their indices."""
        count = len(cost)
        self.cost.append(np.asarray(cost, float))
        self.low.append(np.zeros(count))
        self.high.append(np.full(count, high) if isinstance(high, float | int) else np.array(high, float))
        self.integer.append(np.full(count, integer))
        self.columns += count
        return np.arange(self.columns - count, self.columns)

    def column(self, cost: float = 0.0, high: float = math.inf, *, integer: bool = False) -> int:
        """Add one variable from 0 to `high`; returns its index."""
        return int(self.add_columns([cost], high, integer=integer)[0])

    def row(
        self,
        low: float,
        high: float,
        columns: Sequence[int] | Indices = (),
        values: float | Sequence[float] | Floats = 1.0,
    ) -> int:
        """Add one row with entries in these columns; returns its index."""
        row = int(self.add_rows(low, high, 1)[0])
        self.fill([row] * len(columns), columns, values)
        return row

    def add_cost(self, columns: Sequence[int] | Indices, cost: float | Sequence[float]) -> None:
        """Add to the objective's coefficients of these columns."""
        every = np.concatenate(self.cost)
        np.add.at(every, np.asarray(columns, np.int64), cost)
        self.cost = [every]

    def add_rows(self, low: float | Floats, high: float | Floats, count: int) -> Indices:
        """Add empty rows; `fill` sets their entries. Returns their indices."""
        first = len(self.row_low)
        self.row_low.extend([low] * count if isinstance(low, float | int) else low.tolist())
        self.row_high.extend([high] * count if isinstance(high, float | int) else high.tolist())
        return np.arange(first, first + count)

    def change_rows(self, rows: Sequence[int], low: float, high: float) -> None:
        """Give rows another range."""
        for row in rows:
            self.row_low[row], self.row_high[row] = low, high

    def fill(
        self, rows: Sequence[int] | Indices, columns: Sequence[int] | Indices, values: float | Sequence[float] | Floats
    ) -> None:
        """Set entries, one per pair of row and column; entries of the same pair add up."""
        at = np.asarray(rows, np.int64)
        entries = np.full(len(at), values) if isinstance(values, float | int) else np.asarray(values, float)
        self.entries.append((at, np.asarray(columns, np.int64), entries))

    def limit_cost(self, most: float = math.inf, without: Sequence[int] = (), *, least: float = -math.inf) -> None:
        """Add a row that keeps the objective, without these columns, between `least` and `most`."""
        if math.isinf(most) and math.isinf(least):
            return
        cost = np.concatenate(self.cost)
        cost[list(without)] = 0.0
        columns = np.flatnonzero(cost)
        self.row(least, most, columns, cost[columns])

    def solve(self, limits: SolveLimits = NO_LIMITS, *, relaxed: bool = False) -> ProgramSolution:
        """The best point within the limits. `relaxed`: without integrality. SolverError on a numerical failure."""
        model = self.model(limits, relaxed=relaxed)
        run(model)
        return self.answer(model, relaxed=relaxed, cutoff=limits.cutoff)

    def model(self, limits: SolveLimits = NO_LIMITS, *, relaxed: bool = False) -> highspy.Highs:
        """The HiGHS model, ready to run."""
        model = self.empty_model(limits, relaxed=relaxed)
        if model.passModel(self.lp(relaxed=relaxed)) == highspy.HighsStatus.kError:
            raise SolverError(BAD_NUMBERS)
        return model

    def empty_model(self, limits: SolveLimits = NO_LIMITS, *, relaxed: bool = False) -> highspy.Highs:
        """A HiGHS model with the options of a solve, to which the program is still to be passed."""
        model = highspy.Highs()
        options: dict[str, bool | int | float | str] = {
            "output_flag": False,
            "threads": 1,
            "random_seed": 0,
            "mip_rel_gap": limits.gap,
            "mip_abs_gap": 0.0,
            "primal_feasibility_tolerance": FEASIBILITY_TOLERANCE,
            "dual_feasibility_tolerance": FEASIBILITY_TOLERANCE,
            "mip_feasibility_tolerance": FEASIBILITY_TOLERANCE,
            "time_limit": math.inf if limits.time_limit_s is None else limits.time_limit_s,
            "objective_bound": limits.cutoff,
        }
        if limits.quick:
            options |= dict.fromkeys(DEAR, False)
        if limits.tiny:
            options |= SPARED
        if not limits.presolve:
            options["presolve"] = "off"
        if limits.most_nodes is not None:
            options["mip_max_nodes"] = limits.most_nodes
        if not relaxed and math.isfinite(limits.enough):
            options["objective_target"] = limits.enough
        for option, value in options.items():
            model.setOptionValue(option, value)
        return model

    def answer(self, model: highspy.Highs, *, relaxed: bool = False, cutoff: float = math.inf) -> ProgramSolution:
        """The solution of a HiGHS model that has run. SolverError on a numerical failure."""
        status, info = model.getModelStatus(), model.getInfo()
        if status in INFEASIBLE:
            return ProgramSolution(None, math.inf, above(math.inf, cutoff))
        found = info.primal_solution_status == highspy.kSolutionStatusFeasible
        if status not in ENDED:
            raise SolverError(f"HiGHS ended with {model.modelStatusToString(status)}; please report this problem")
        value = float(info.objective_function_value) if found else math.inf
        exact = relaxed or not any(block.any() for block in self.integer)
        bound = value if exact and found else float(info.mip_dual_bound)
        values = np.array(model.getSolution().col_value) if found else None
        return ProgramSolution(values, value, above(min(bound, value), cutoff))

    def matrix(self) -> Matrix:
        """The program as sparse arrays."""
        rows, columns, values = (np.concatenate(part) for part in zip(*self.entries, strict=True))
        low, high = np.array(self.row_low), np.array(self.row_high)
        return Matrix(rows, columns, values, low, high, np.concatenate(self.cost), np.concatenate(self.high))

    def lp(self, *, relaxed: bool) -> highspy.HighsLp:
        """The program in HiGHS' own structure."""
        matrix, lp = self.matrix(), highspy.HighsLp()
        lp.num_col_, lp.num_row_ = self.columns, len(self.row_low)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = matrix.cost, np.concatenate(self.low), matrix.most
        lp.row_lower_, lp.row_upper_ = matrix.low, matrix.high
        at = matrix.rows * self.columns + matrix.columns
        keys, inverse = np.unique(at, return_inverse=True)  # sorted: row by row
        summed: Floats = np.bincount(inverse, matrix.values).astype(float)
        starts = np.searchsorted(keys // self.columns, np.arange(lp.num_row_ + 1))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = starts.astype(np.int32), (keys % self.columns).astype(np.int32)
        lp.a_matrix_.value_ = summed
        if not relaxed:
            kinds = np.concatenate(self.integer)
            lp.integrality_ = [
                highspy.HighsVarType.kInteger if kind else highspy.HighsVarType.kContinuous for kind in kinds
            ]
        return lp
