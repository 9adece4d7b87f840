"""Unlike sites and many workflows on one fleet: time, gap and memory by their number, one process per plan."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Picture, Result, Table, Topic
from jellybean.display import formats
from jellybean.display.pictures import INK, LINE, SERIES, STYLE, SURFACE, save_figure

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "many-workflows.svg"
SITES = (("50", "60"), ("100", "60"), ("300", "60"), ("1000", "60"), ("3000", "180"), ("10000", "600"))  # number, limit
WORKFLOWS = (("20", "2000", "60"), ("50", "5000", "60"), ("100", "10000", "60"))
SEEDS = ("0", "1")
ONCE = 3_000  # sites from which one seed is run


@dataclass(frozen=True, slots=True)
class Run:
    """One plan; `gap`: None without a plan. `workers`: 0 for sites."""

    count: int
    workers: int
    seed: int
    limit_s: float
    seconds: float
    megabytes: float
    gap: float | None
    cost_usd_per_h: float | None
    complaints: int


@benchmark
def many_workflows(smoke: bool) -> Result:
    """Unlike sites of one workflow, and unlike workflows, by number."""
    seeds = SEEDS[:1] if smoke else SEEDS
    sites, workflows = ((("16", "20"),), (("16", "800", "20"),)) if smoke else (SITES, WORKFLOWS)
    of_sites = [
        _run("sites", seed, count, "0", limit_s)
        for count, limit_s in sites
        for seed in (seeds if int(count) < ONCE else seeds[:1])
    ]
    of_workflows = [
        _run("workflows", seed, count, workers, limit_s) for count, workers, limit_s in workflows for seed in seeds
    ]
    if not smoke:
        save_plot(of_sites, of_workflows, PICTURE)
    runs = [*of_sites, *of_workflows]
    columns = ("seed", "at most s", "s", "MB", "gap %", "USD/h")
    return Result(
        title="Unlike sites and many workflows on one fleet",
        topic=Topic.PLANNING,
        method="Random problems by seed, one process per plan, 2 % asked. Sites: one workflow of 10 operators with 4 "
        "variants each, in sites with rates, accuracies, link prices, bandwidths and workers of their own (1 to 8 "
        "workers in one or two pools); six pools in the cloud suffice for 60 % of the work. Workflows: graphs of 4 to "
        "10 operators with 4 variants each, on 24 pools in three tiers and three links, all in common; the work takes "
        "about 70 % of the fleet. `tests/plan_check.py`, which shares no code with the solver, checks each plan.",
        reference="the lower bound that the solver proves for the whole problem.",
        tables=(
            Table.of(("sites", *columns), [[f"{run.count:,}", *_cells(run)] for run in of_sites], "Unlike sites"),
            Table.of(
                ("workflows", "workers", *columns),
                [[f"{run.count:,}", f"{run.workers:,}", *_cells(run)] for run in of_workflows],
                "Unlike workflows",
            ),
        ),
        notes=(f"The checker has {sum(run.complaints for run in runs)} complaints about these plans.",),
        picture=Picture(
            PICTURE.name, "time and gap by number of sites and of workflows", [asdict(run) for run in runs]
        ),
    )


def _run(kind: str, seed: str, count: str, workers: str, limit_s: str) -> Run:
    command = [sys.executable, "-m", "benchmarks.unlike.one", kind, seed, count, workers, limit_s]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    print(kind, seed, count, done.stdout.strip(), file=sys.stderr, flush=True)
    return Run(int(count), int(workers), int(seed), float(limit_s), **found)


def _cells(run: Run) -> list[str]:
    gap = "no plan" if run.gap is None else f"{100 * run.gap:.2f}"
    cost = "" if run.cost_usd_per_h is None else f"{run.cost_usd_per_h:.2f}"
    return [str(run.seed), f"{run.limit_s:g}", f"{run.seconds:.0f}", f"{run.megabytes:,.0f}", gap, cost]


def save_plot(sites: Sequence[Run], workflows: Sequence[Run], path: Path) -> None:
    """Two panels: time, gap; both by number."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.6), facecolor=SURFACE, layout="constrained")
        time, gap = figure.subplots(1, 2)
        for runs, color, label in ((sites, SERIES[0], "unlike sites"), (workflows, SERIES[1], "unlike workflows")):
            time.plot([run.count for run in runs], [run.seconds for run in runs], "o", color=color, label=label)
            known = [run for run in runs if run.gap is not None]
            gap.plot([run.count for run in known], [100 * (run.gap or 0.0) for run in known], "o", color=color)
        ticks = (10, 30, 100, 300)
        time.set_yscale("log")
        time.set_yticks(ticks, list(map(formats.axis_duration, ticks)))
        time.set_title("time", loc="left", fontsize=10.5, color=INK, fontweight="bold")
        gap.set_title("proven gap, %", loc="left", fontsize=10.5, color=INK, fontweight="bold")
        gap.set_ylim(bottom=0)
        for axes in (time, gap):
            axes.set_xscale("log")
            axes.set_xticks((20, 100, 1_000, 10_000), ["20", "100", "1,000", "10,000"])
            axes.minorticks_off()
            axes.set_xlabel("sites or workflows")
            axes.grid(axis="y", color=LINE, linewidth=0.6, alpha=0.7)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(*time.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        save_figure(figure, path)
