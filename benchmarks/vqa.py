"""Cost and solve time on the published visual-question-answering figures, over rates and accuracies."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from benchmarks.registry import benchmark, print_table
from jellybean.documents import build_problem, load_project
from jellybean_solver.solve import Solution, solve

VQA = Path(__file__).parent.parent / "examples" / "vqa"
PUBLISHED = {(40, 56.0): "7.5088"}  # the JellyBean prototype's own optimizer on the same figures


@benchmark
def vqa_grid(smoke: bool) -> None:
    """Every cell is solved to gap 0 or shown infeasible; times are medians of alternating runs."""
    rates = (10, 40) if smoke else (10, 20, 30, 40, 50, 60, 70, 80)
    accuracies = (56.0,) if smoke else (54.0, 55.0, 56.0, 57.0, 58.0, 58.3)
    rows = [_row(rate, accuracy, runs=1 if smoke else 5) for accuracy in accuracies for rate in rates]
    print_table(
        "vqa: lowest cost by rate and accuracy",
        ["accuracy >=", "rate /s", "shared USD/h", "exclusive USD/h", "prototype USD/h", "gap", "solve s (median)"],
        rows,
    )


def _row(rate: int, accuracy: float, runs: int) -> list[object]:
    times: list[float] = []
    answers: dict[str, Solution] = {}
    for _ in range(runs):
        for sharing in ("shared", "exclusive"):
            settings = (f"slo.accuracy={accuracy}", f"limits.sharing={sharing}")
            rates = tuple(f"sources.{source}.rate={rate}/s" for source in ("image", "speech"))
            problem = build_problem(load_project(VQA, settings + rates))
            started = time.perf_counter()
            answers[sharing] = solve(problem)
            times.append(time.perf_counter() - started)
    plans = [answers[sharing].plan for sharing in ("shared", "exclusive")]
    costs = [f"{plan.cost.total_usd_per_h:.4f}" if plan else "infeasible" for plan in plans]
    gap = max((plan.certificate.gap for plan in plans if plan), default=None)
    shown = "" if gap is None else f"{gap:.1e}" if gap else "0"
    return [accuracy, rate, *costs, PUBLISHED.get((rate, accuracy), ""), shown, f"{statistics.median(times):.3f}"]
