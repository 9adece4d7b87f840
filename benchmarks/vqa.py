"""Cost and solve time on the published visual-question-answering figures, over rates and accuracies."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from pathlib import Path

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean.documents import build_problem, load_project
from jellybean_solver import Baseline, Problem, Solution, baselines, solve

VQA = Path(__file__).parent.parent / "examples" / "vqa"
PUBLISHED = {(40, 56.0): "7.5088"}  # the JellyBean prototype's own optimizer on the same figures


@benchmark
def vqa_grid(smoke: bool) -> Result:
    """Solve time is the median of alternating runs; every cell is solved to gap 0 or proven infeasible."""
    rates = (10, 40) if smoke else (10, 20, 30, 40, 50, 60, 70, 80)
    accuracies = (56.0,) if smoke else (54.0, 55.0, 56.0, 57.0, 58.0, 58.3)
    runs = 1 if smoke else 5
    rows = [_row(rate, accuracy, runs) for accuracy in accuracies for rate in rates]
    columns = [
        "accuracy >=",
        "rate /s",
        "shared USD/h",
        "exclusive USD/h",
        "prototype USD/h",
        "gap",
        "solve s (median)",
    ]
    return Result(
        title="vqa: lowest cost by rate and accuracy",
        topic=Topic.PLANNING,
        method="Published figures of `examples/vqa`. Each cell is solved with shared and with exclusive workers, "
        f"{runs} "
        "times in turn, inside one process; the time is the median of all these solves.",
        reference="the cost that the JellyBean prototype's own optimizer finds, where it was published (rate 40/s, "
        "accuracy 56). Gap 0 is a proof of optimality.",
        tables=(Table.of(columns, rows),),
        notes=(f"The slowest cell takes {max(float(str(row[-1])) for row in rows):.2f} s.",),
    )


@benchmark
def vqa_savings(smoke: bool) -> Result:
    """Savings over each simple rule and over the prototype's greedy rule, in the cells that have a plan."""
    rates = (40,) if smoke else (10, 20, 40, 60, 80)
    accuracies = (56.0,) if smoke else (54.0, 55.0, 56.0, 57.0, 58.0, 58.3)
    found: dict[str, list[float | str]] = {}
    for rate in rates:
        for accuracy in accuracies:
            problem = _problem(rate, accuracy, "shared")
            plan = solve(problem, explained=False).plan
            if plan is not None:
                for rule in baselines(problem):
                    found.setdefault(rule.name, []).append(_saving(rule, plan.cost.total_usd_per_h))
    cells = max(len(savings) for savings in found.values())
    columns = ["rule", "cells", "meets the targets in", "median saving", "largest", "smallest", "otherwise"]
    return Result(
        title="vqa: savings over simple rules",
        topic=Topic.PLANNING,
        method=f"Published figures of `examples/vqa`, shared workers. {cells} of {len(rates) * len(accuracies)} cells "
        f"({rates[0]} to {rates[-1]}/s, accuracy {accuracies[0]:g} to {accuracies[-1]:g}) have a plan. A saving is "
        "the share "
        "of the rule's cost that the optimal plan saves, in the cells where the rule's plan meets the targets.",
        reference="plans made by simple rules; `greedy tier by tier` is the prototype's rule.",
        tables=(Table.of(columns, [_summary(name, savings) for name, savings in found.items()]),),
    )


def _saving(rule: Baseline, usd_per_h: float) -> float | str:
    """Share of the rule's cost that the optimal plan saves, or why the rule has no valid plan."""
    if rule.cost_usd_per_h is None or rule.status not in ("optimal", "gap", "found"):
        return rule.status.replace("_", " ")
    return 1.0 - usd_per_h / rule.cost_usd_per_h


def _summary(name: str, savings: list[float | str]) -> list[object]:
    known = [saving for saving in savings if isinstance(saving, float)]
    others = Counter(saving for saving in savings if isinstance(saving, str))
    figures = [statistics.median(known), max(known), min(known)] if known else []
    shown = [f"{figure:.0%}" for figure in figures] or ["", "", ""]
    return [name, len(savings), len(known), *shown, ", ".join(f"{why} {count}" for why, count in others.items())]


def _problem(rate: int, accuracy: float, sharing: str) -> Problem:
    settings = (f"slo.accuracy={accuracy}", f"limits.sharing={sharing}")
    rates = tuple(f"sources.{source}.rate={rate}/s" for source in ("image", "speech"))
    return build_problem(load_project(VQA, settings + rates))


def _row(rate: int, accuracy: float, runs: int) -> list[object]:
    times: list[float] = []
    answers: dict[str, Solution] = {}
    for _ in range(runs):
        for sharing in ("shared", "exclusive"):
            problem = _problem(rate, accuracy, sharing)
            started = time.perf_counter()
            answers[sharing] = solve(problem)
            times.append(time.perf_counter() - started)
    plans = [answers[sharing].plan for sharing in ("shared", "exclusive")]
    costs = [f"{plan.cost.total_usd_per_h:.4f}" if plan else "infeasible" for plan in plans]
    gap = max((plan.certificate.gap for plan in plans if plan), default=None)
    shown = "" if gap is None else f"{gap:.1e}" if gap else "0"
    return [accuracy, rate, *costs, PUBLISHED.get((rate, accuracy), ""), shown, f"{statistics.median(times):.3f}"]
