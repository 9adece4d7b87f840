"""Mean accuracy of plans that mix variants, on a pipeline that another planner published."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.registry import BenchmarkError, benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean.display.formats import accuracy, duration, plain
from jellybean.documents import load_project
from jellybean.planning.planned import Planned
from jellybean.planning.project_plan import plan_project
from jellybean_solver import Plan

FOLDER = "JELLYBEAN_LOKI"  # names the folder with the pipeline as a JellyBean project
RATES = ("100/s", "200/s", "400/s", "800/s")


@benchmark
def mixed_variants(smoke: bool) -> Result:
    """Highest mean accuracy of 20 workers at four rates: detector and two classifiers, p99 within 250 ms."""
    folder = os.environ.get(FOLDER)
    if not folder:
        raise BenchmarkError(
            f"{FOLDER} names no folder: the published figures may not be copied, so they are read from where you keep "
            "them (workflow.yaml, infrastructure.yaml and profiles.yaml of the pipeline)"
        )
    rows = [_row(Path(folder), rate) for rate in (RATES[-1:] if smoke else RATES)]
    return Result(
        title="Mixed variants: mean accuracy of Loki's traffic pipeline",
        topic=Topic.PLANNING,
        method="`jellybean plan` with `objective=mean_accuracy` and `limits.utilisation=auto`: 20 exclusive workers, "
        "175 selections, p99 within 250 ms by simulation. Seconds are of the whole search, simulations included.",
        reference="an upper bound on the mean accuracy of every plan, proven without the p99 target. Pipeline and "
        "figures: Ahmad, Guan, Sitaraman, Loki (HPDC 2024).",
        tables=(Table.of(_COLUMNS, rows),),
    )


_COLUMNS = ("frames", "mean accuracy", "at most", "p99", "workers", "variants (workers)", "s")


def _row(folder: Path, rate: str) -> Sequence[str]:
    options = (f"sources.frame.rate={rate}", "slo.accuracy=null", "objective=mean_accuracy", "limits.utilisation=auto")
    started = time.perf_counter()
    planned = plan_project(load_project(folder, options))
    taken_s = time.perf_counter() - started
    if planned.plan is None:
        return (rate, "; ".join(planned.reasons), "", "", "", "", plain(taken_s))
    plan = planned.plan
    bound = accuracy(plan.certificate.bound)
    return rate, accuracy(plan.accuracy), bound, _p99(planned), str(len(plan.workers)), _variants(plan), plain(taken_s)


def _p99(planned: Planned) -> str:
    return "" if planned.judged is None else duration(next(iter(planned.judged.p99.values())).p99_s)


def _variants(plan: Plan) -> str:
    return ", ".join(f"{place.variant} ({place.count})" for place in plan.placements)
