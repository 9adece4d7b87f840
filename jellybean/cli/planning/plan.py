"""Commands plan and simulate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from jellybean.cli.app import Directory, Json, Overrides, Seed, Stale, app, checked_picture, example
from jellybean.cli.console import errors, out, print_json, progress, say, warn
from jellybean.cli.current_plan import load_current_plan
from jellybean.cli.exit_status import EXIT_INFEASIBLE
from jellybean.cli.failures import text_of
from jellybean.cli.planning.answer_view import answer_json, answer_text
from jellybean.cli.planning.check import run_check
from jellybean.cli.planning.options import (
    DEFAULT_HORIZON,
    Add,
    CheckTrace,
    DryRun,
    Gap,
    Horizon,
    OtherFile,
    RateScale,
    ReplayPlot,
    ReplaySeed,
    RunningPlan,
    horizon_hours,
)
from jellybean.cli.planning.plan_output import PlanOutput, Written
from jellybean.cli.projects import open_any_project, open_planned_project, recorded_if_possible
from jellybean.cli.times import SimulationLimit, TimeLimit, command_limit, seconds_within
from jellybean.display import formats
from jellybean.display.terminal import BAD
from jellybean.documents import scaled_rates, with_settings
from jellybean.errors import InfeasibleError, OutOfTimeError
from jellybean.planning.answers import PlanQuestion, answered
from jellybean.planning.plan_file import PlanFile
from jellybean.planning.planned import Planned
from jellybean.planning.prediction import predict
from jellybean.planning.replan import ReplanResult
from jellybean.planning.soft_targets import soft_targets
from jellybean.report.plans.proof import unproven
from jellybean.report.plans.workflows_summary import MOST_NAMED, is_summarised
from jellybean.report.records import record_prediction
from jellybean_solver import Plan, to_document


@app.command(
    epilog=example(
        "jellybean plan my-digits",
        "jellybean plan my-vqa --set slo.accuracy=57 --json",
        "jellybean plan my-digits --rate-scale 2 --dry-run",
        "jellybean plan my-digits --check my-digits/traces/day.csv --plot day.svg",
        "jellybean plan my-digits --from running --horizon 7d --set sources.strip.rate=12/s",
        "jellybean plan my-stores --add",
    )
)
def plan(
    directory: Directory,
    overrides: Overrides = None,
    json: Json = False,
    stale: Stale = False,
    time_limit: TimeLimit = None,
    gap: Gap = None,
    rate_scale: RateScale = 1.0,
    check: CheckTrace = None,
    plot: ReplayPlot = None,
    seed: ReplaySeed = 0,
    start: RunningPlan = None,
    horizon: Horizon = None,
    add: Add = False,
    dry_run: DryRun = False,
    output: OtherFile = None,
) -> None:
    """Choose variants and place operators at minimum cost; writes plan.json. With --check: replay a rate trace."""
    if check is not None:
        scale = None if rate_scale == 1.0 else rate_scale
        given: dict[str, object] = {"--gap": gap, "--from": start, "--horizon": horizon}
        given |= {"--rate-scale": scale, "--add": add or None, "--dry-run": dry_run or None, "--out": output}
        for option in (name for name, value in given.items() if value is not None):
            raise typer.BadParameter(f"{option} cannot be combined with --check, which replays the current plan")
        if plot is not None:
            checked_picture(plot)
        project = open_planned_project(directory, overrides, stale=stale)
        with command_limit(time_limit):
            run_check(project, check, what_if=bool(overrides), seed=seed, json=json, plot=plot)
        return
    if plot is not None:
        raise typer.BadParameter("--plot needs --check TRACE")
    if horizon is not None and add:
        raise typer.BadParameter("--horizon cannot be combined with --add: what is served already does not move")
    if horizon is not None and start is None:
        raise typer.BadParameter("--horizon needs --from PLAN")
    own = PlanFile(directory)
    destination = PlanOutput(own, dry_run, output)
    destination.check()
    horizon_h = None if start is None or add else horizon_hours(horizon or DEFAULT_HORIZON)
    project = open_any_project(directory, overrides, stale=stale, shows_times=True)
    if rate_scale != 1.0:
        project = with_settings(project, scaled_rates(project, rate_scale, digits=None))
    running = own.named(start) if start is not None else own.load() if add else None
    with command_limit(time_limit):
        try:
            with progress("plan") as advance:
                planned = answered(project, PlanQuestion(gap, running, horizon_h), advance)
        except OutOfTimeError as error:
            raise OutOfTimeError("\n".join(filter(None, (str(error), own.kept_text(outdated=False))))) from error
        written = destination.write(project, planned)
        kept = own.kept_text(outdated=True) if planned.plan is None else ""
        _show(planned, written, kept, json=json)


def _show(planned: Planned, written: Written, kept: str, *, json: bool) -> None:
    """Print the plan and what was written; typer.Exit(3) with the reasons if there is none."""
    if json:
        print_json(answer_json(planned, kept))
    elif planned.plan is not None:
        out.print(answer_text(planned, planned.plan))
    if not json or isinstance(planned, ReplanResult):
        for line in written.lines:
            say(line)
    for note in (*planned.notes, written.warning):
        if note and note not in planned.reasons:
            warn(note)
    if planned.plan is None:
        infeasible = InfeasibleError(planned.reasons, kept)
        errors.print(f"{planned.problem.name}: {text_of(infeasible)}", style=BAD, soft_wrap=True)
        raise typer.Exit(EXIT_INFEASIBLE)


@app.command(epilog=example("jellybean simulate my-digits", "jellybean simulate my-vqa --rate-scale 1.1 --json"))
def simulate(
    directory: Directory,
    overrides: Overrides = None,
    json: Json = False,
    stale: Stale = False,
    seed: Seed = 0,
    rate_scale: Annotated[float, typer.Option(min=0.001, max=1000, help="Multiply all sources' rates.")] = 1.0,
    duration: Annotated[
        float | None,
        typer.Option(
            parser=seconds_within(1, 86_400),
            metavar="TIME",
            help="Simulated time of each simulation, in seconds or with a unit; chosen automatically by default.",
        ),
    ] = None,
    time_limit: SimulationLimit = None,
) -> None:
    """Predict latency, throughput and the highest sustained rate of the plan by simulation."""
    project = open_planned_project(directory, overrides, stale=stale)
    with command_limit(time_limit):
        current = load_current_plan(project, what_if=bool(overrides))
    if (warning := unproven(current)) is not None:
        warn(warning)
    with progress("simulate") as advance, command_limit(time_limit):
        record = predict(current, seed=seed, rate_scale=rate_scale, duration_s=duration, progress=advance)
    ended = record.get("ended_by_time_limit", "")
    is_shared = math.isclose(rate_scale, 1.0) and seed == 0 and duration is None and not ended
    if is_shared and to_document(current)["hash"] == PlanFile(directory).hash:
        with recorded_if_possible("this prediction"):
            record_prediction(directory, current, record)
    if json:
        print_json(record)
    else:
        out.print(_simulation_table(current, record))
    if ended:
        warn(ended)


def _simulation_table(plan: Plan, record: dict[str, Any]) -> Table:
    table = Table("figure", "predicted", title=f"{plan.name}: simulated", title_justify="left")
    table.add_row("throughput", formats.rate(record["throughput_per_s"]))
    at_least = "at least " if record["highest_rate_is_limit"] else ""
    if record["highest_rate_per_s"] is not None and not plan.workflows:
        table.add_row("highest sustained rate", f"{at_least}{formats.rate(record['highest_rate_per_s'])}")
    for share in ("p50", "p90", "p99"):
        table.add_row(f"latency {share}", _latency(record, share))
    if soft := soft_targets(plan):
        above = formats.duration(soft[""].p99_s) if "" in soft else "soft targets"
        table.add_row(f"penalty, p99 above {above}", f"{formats.usd(record['latency_penalty_usd_per_h'])} USD/h")
    if plan.workflows and record.get("highest_rate_per_s"):
        first = plan.sources[0]
        times = record["highest_rate_per_s"] / (first.rate_per_s * plan.sites.get(first.tier, 1))
        table.add_row("highest sustained rates", f"{at_least}{times:.2f} times the planned rates")
    for name, figures in _shown_workflows(plan, record):
        table.add_row(f"throughput {name}", formats.rate(figures["throughput_per_s"]))
        for share in ("p50", "p99"):
            table.add_row(f"latency {share} {name}", _latency(figures, share))
    for worker, busy in _shown_workers(plan, record):
        tier = plan.worker_by_name[worker].tier
        each = f" in each {tier}" if tier in plan.sites else ""
        table.add_row(f"utilisation {worker}{each}", formats.percent(busy))
    return table


def _shown_workflows(plan: Plan, record: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Each workflow with its simulated figures; of many the slowest ones."""
    workflows = list(record.get("workflows", {}).items())
    if not is_summarised(plan):
        return workflows
    return sorted(workflows, key=lambda item: -(item[1]["latency_p99_s"] or 0.0))[:MOST_NAMED]


def _shown_workers(plan: Plan, record: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Each worker with its simulated utilisation; of many workflows the busiest ones."""
    workers = list(record.get("utilisation", {}).items())
    return sorted(workers, key=lambda item: -item[1])[:MOST_NAMED] if is_summarised(plan) else workers


def _latency(figures: Mapping[str, Any], share: str) -> str:
    """A simulated latency as text, with its interval if it has one."""
    low_s, high_s = (figures.get(f"latency_{share}_{end}_s") for end in ("low", "high"))
    return formats.interval(figures[f"latency_{share}_s"], low_s, high_s)
