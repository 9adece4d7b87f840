"""The solver and the plain joint MILP in turns on middle-size problems, each run in a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.page import result_text
from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from benchmarks.middle.features import LEGEND, features
from benchmarks.middle.joint_milp import THREADS
from benchmarks.middle.one import Run
from benchmarks.middle.problems import middle_problem

DEARER = 1e-3  # relative: a plan dearer than the other's by more counts as worse
EQUAL = 1e-6  # relative: what two proven optima may differ by
KILLED_AFTER = 4.0  # times the limit, plus a minute
HEADER = (
    "seed",
    "features",
    "ops",
    "pools",
    "solver USD/h",
    "bound",
    "status",
    "s",
    "MILP USD/h",
    "bound",
    "status",
    "s",
    "difference",
)


@dataclass(frozen=True)
class Pair:
    """Both runs on the problem of a seed."""

    seed: int
    solver: Run
    milp: Run

    @property
    def excess(self) -> float:
        """What the solver's plan costs more than the MILP's, as a share; 0 where one of them has none."""
        if self.solver.value is None or self.milp.value is None:
            return 0.0
        return (self.solver.value - self.milp.value) / max(self.milp.value, 1e-9)

    @property
    def lacks_plan(self) -> bool:
        """Whether only the MILP found a plan."""
        return self.solver.value is None and self.milp.value is not None

    @property
    def disagrees(self) -> bool:
        """Whether both claim a proof, and one of them is wrong; or one has a plan below the other's bound."""
        if self.solver.is_proven and self.milp.is_proven:
            return (self.solver.value is None) != (self.milp.value is None) or abs(self.excess) > EQUAL
        return _is_below(self.milp.value, self.solver.bound) or _is_below(self.solver.value, self.milp.bound)


def _is_below(value: float | None, bound: float) -> bool:
    return value is not None and value < bound - EQUAL * max(1.0, abs(value))


def compare(seeds: Sequence[int], limit_s: float) -> Iterator[Pair]:
    """The pairs one by one; who runs first alternates."""
    for number, seed in enumerate(seeds):
        order = ("solver", "milp") if number % 2 == 0 else ("milp", "solver")
        runs = {method: _run(seed, method, limit_s) for method in order}
        yield Pair(seed, runs["solver"], runs["milp"])


def _run(seed: int, method: str, limit_s: float) -> Run:
    command = [sys.executable, "-m", "benchmarks.middle.one", str(seed), method, str(limit_s)]
    killed_after_s = KILLED_AFTER * limit_s + 60.0
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=killed_after_s, check=False)
    except subprocess.TimeoutExpired:
        return Run(None, 0.0, "error", killed_after_s, error="killed")
    if done.returncode != 0:
        return Run(None, 0.0, "error", 0.0, error=done.stderr[-500:])
    found = json.loads(done.stdout)
    return Run(**{**found, "complaints": tuple(found["complaints"])})


def row(pair: Pair) -> list[object]:
    """A row of the table."""
    problem = middle_problem(pair.seed)
    size = len(problem.operators), len(problem.pools)
    return [pair.seed, features(problem), *size, *_figures(pair.solver), *_figures(pair.milp), _remark(pair)]


def _figures(run: Run) -> list[str]:
    value = "none" if run.value is None else f"{run.value:.4f}"
    return [value, f"{run.bound:.4f}", run.status, f"{run.seconds:.1f}"]


def _remark(pair: Pair) -> str:
    said = []
    if pair.excess > DEARER:
        said.append(f"dearer by {100 * pair.excess:.2f} %")
    elif pair.excess < -DEARER:
        said.append(f"cheaper by {-100 * pair.excess:.2f} %")
    if pair.lacks_plan:
        said.append("no plan")
    if pair.disagrees:
        said.append("PROOFS DISAGREE")
    for name, run in (("solver", pair.solver), ("MILP", pair.milp)):
        said += [f"{name}: {text}" for text in (*run.complaints, run.error) if text]
    return "; ".join(said)


def summary(pairs: Sequence[Pair], limit_s: float) -> list[list[object]]:
    """What the comparison is about, figure by figure."""
    ratios = [pair.solver.seconds / max(pair.milp.seconds, 1e-3) for pair in pairs]
    over = [max(0.0, pair.solver.seconds - limit_s) for pair in pairs]
    runs = [run for pair in pairs for run in (pair.solver, pair.milp) if run.value is not None or run.status == "error"]
    dearer = [pair.excess for pair in pairs if pair.excess > DEARER]
    return [
        ["problems", len(pairs)],
        ["solver dearer by more than 0.1 %", f"{len(dearer)} (worst {100 * max(dearer, default=0.0):.2f} %)"],
        ["solver cheaper by more than 0.1 %", sum(pair.excess < -DEARER for pair in pairs)],
        ["no plan where the MILP has one", sum(pair.lacks_plan for pair in pairs)],
        ["a plan where the MILP has none", sum(p.milp.value is None and p.solver.value is not None for p in pairs)],
        ["proven by the solver, by the MILP", f"{_proven(pairs, 'solver')}, {_proven(pairs, 'milp')}"],
        ["infeasible (proven by either)", sum("infeasible" in (p.solver.status, p.milp.status) for p in pairs)],
        ["proofs that disagree beyond 1e-6", sum(pair.disagrees for pair in pairs)],
        ["plans with complaints, errors", sum(bool(run.complaints or run.error) for run in runs)],
        ["solver's time / MILP's, median", f"{statistics.median(ratios):.2f}" if ratios else "-"],
        ["solver faster", sum(ratio < 1.0 for ratio in ratios)],
        [f"solver beyond the limit of {limit_s:g} s by more than 1 s", sum(one > 1.0 for one in over)],
        ["solver's largest overshoot", f"{max(over, default=0.0):.1f} s"],
    ]  # fmt: skip


def _proven(pairs: Sequence[Pair], method: str) -> int:
    return sum(getattr(pair, method).is_proven for pair in pairs)


def print_comparison(seeds: Sequence[int], limit_s: float, json_path: str | None = None) -> None:
    """Rows as they are known, then the whole result; figures as JSON lines in a file, if asked."""
    pairs = []
    for pair in compare(seeds, limit_s):
        pairs.append(pair)
        print(" | ".join(str(cell) for cell in row(pair)), flush=True)
        if json_path is not None:
            with Path(json_path).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"limit_s": limit_s, **asdict(pair)}) + "\n")
    print("\n" + result_text(result(pairs, limit_s)))


def read_pairs(path: Path) -> list[Pair]:
    """The pairs that `print_comparison` wrote to a file, by seed."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        runs = [Run(**{**fields[who], "complaints": tuple(fields[who]["complaints"])}) for who in ("solver", "milp")]
        found.append(Pair(fields["seed"], *runs))
    return sorted(found, key=lambda pair: pair.seed)


def result(pairs: Sequence[Pair], limit_s: float) -> Result:
    """The tables of a comparison."""
    return Result(
        title="Middle-size problems beside a plain joint MILP",
        topic=Topic.PLANNING,
        method="Random problems of 6 to 12 operators, 3 to 5 variants each and 8 to 20 pools on three tiers, by seed. "
        f"Solver and MILP run in turn, each in a process of its own for at most {limit_s:g} s. Every plan is scored by "
        f"`evaluate` and checked by `tests/plan_check.py`. Features: {LEGEND}.",
        reference=f"selection, placement, flows, counts and memory in one program (`benchmarks/middle/joint_milp.py`), "
        f"solved by HiGHS with {THREADS} threads to a gap of 0.",
        tables=(
            Table.of(("figure", "value"), summary(pairs, limit_s), "Summary"),
            Table.of(HEADER, [row(pair) for pair in pairs], "Runs"),
        ),
    )


@benchmark
def middle(smoke: bool) -> Result:
    """Problems of 6 to 12 operators and 8 to 20 pools with all features: the solver beside a plain joint MILP."""
    seeds, limit_s = (range(2), 2.0) if smoke else (range(48), 60.0)
    return result(list(compare(seeds, limit_s)), limit_s)
