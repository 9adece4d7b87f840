"""Commands bench, report and demo."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from jellybean.bench import bench as bench_module
from jellybean.bench.load_settings import DURATION_S
from jellybean.bench.result import BenchResult
from jellybean.cli.app import Directory, Json, Overrides, Seed, app, checked_file, example
from jellybean.cli.command_resources import open_for_command
from jellybean.cli.console import collected_warnings, errors, out, print_json, progress, say, warn
from jellybean.cli.current_plan import load_current_plan
from jellybean.cli.documents import check_project
from jellybean.cli.exit_status import EXIT_MISSED, EXIT_OVERLOAD
from jellybean.cli.init import Example, copy_example
from jellybean.cli.projects import open_project, options_of_plan, recorded_if_possible
from jellybean.cli.serving.accounts.cost import LedgerAt
from jellybean.cli.serving.accounts.drift import show_drift
from jellybean.cli.serving.accounts.ledger_source import open_ledger_source
from jellybean.cli.serving.accounts.served_span import Between, ask_served, asked_span, nothing_served, print_served
from jellybean.cli.serving.bench_workflows import cut_short_notes, measure_workflows, parse_rate_scales
from jellybean.cli.serving.gateway_options import (
    GatewayOptions,
    OfWorkflow,
    takes_gateway,
    unknown_workflow,
)
from jellybean.cli.serving.project_copy import project_copy
from jellybean.cli.serving.remote_store import shown_store
from jellybean.cli.times import MeasurementLimit, command_limit, seconds_within
from jellybean.display import formats
from jellybean.display.terminal import BAD, GOOD, WARN
from jellybean.documents import Project, load_project
from jellybean.documents.layout import holds_several_workflows
from jellybean.folders import shell_text, write_file, write_output
from jellybean.ledger.queries.source import LedgerSource
from jellybean.ledger.span import Span
from jellybean.planning.plan_file import RUNNING, PlanFile
from jellybean.planning.prediction import predict
from jellybean.report import Report, Store, build_report, render_html, to_table
from jellybean.report.advice import HASH_DIGITS
from jellybean.report.records import predicted_rate_per_s, record_measurement, record_once, record_prediction
from jellybean.report.served.served import Served
from jellybean.serving.client import served_document
from jellybean.serving.endpoint import Endpoint, owner_endpoint
from jellybean.serving.errors import RequestError, ServingError
from jellybean.serving.outcomes import outcome_text
from jellybean_agent import planned_rate_per_s
from jellybean_solver import from_document, rate_text

_Duration = Annotated[
    float | None,
    typer.Option(
        *("--duration", "--seconds"),
        parser=seconds_within(1, 86_400),
        metavar="TIME",
        help="Time of load, in seconds or with a unit; 30 s by default, 15 per window with --saturate.",
    ),
]
_RateScales = Annotated[
    list[str] | None,
    typer.Option(
        "--rate-scale", metavar="FACTOR", help="Multiply all rates; NAME=FACTOR: those of one of several workflows."
    ),
]
_Saturate = Annotated[bool, typer.Option("--saturate", help="Find the highest sustained rate.")]


@app.command(
    epilog=example(
        "jellybean bench my-digits",
        "jellybean bench my-digits --saturate",
        "jellybean bench my-digits --json",
        "jellybean bench my-two --workflow digits --saturate",
    )
)
@takes_gateway
def bench(
    directory: Directory,
    overrides: Overrides = None,
    json: Json = False,
    seed: Seed = 0,
    duration: _Duration = None,
    rate_scale: _RateScales = None,
    saturate: _Saturate = False,
    workflow: OfWorkflow = "",
    time_limit: MeasurementLimit = None,
    at: GatewayOptions = GatewayOptions(),
) -> None:
    """Measure the running plan with held-out inputs, at the rate that it was made for, or at that of --set.

    Of several workflows all are measured at the same time.

    Exit status 4 if it is overloaded, 5 if it keeps up but misses a target.
    """
    endpoint = at.endpoint(directory)
    scales = parse_rate_scales(rate_scale or ())
    if saturate and scales:
        raise typer.BadParameter("--saturate and --rate-scale exclude each other")
    copy = open_for_command(project_copy(directory, endpoint))
    several = holds_several_workflows(copy or directory)
    options = overrides or ()
    results: Sequence[BenchResult]
    if several:
        results = measure_workflows(
            directory, options, documents=copy, workflow=workflow, seed=seed, duration_s=duration, rate_scales=scales,
            saturate=saturate, endpoint=endpoint, time_limit_s=time_limit,
        )  # fmt: skip
    else:
        _require_own_name(copy or directory, options, scales, workflow)
        scale = next(iter(scales.values()), 1.0)
        results = [
            measure(
                directory, options, documents=copy, seed=seed, duration_s=duration, rate_scale=scale,
                saturate=saturate, endpoint=endpoint, time_limit_s=time_limit,
            )
        ]  # fmt: skip
    if json:
        parts = {result.workflow: result.to_json() for result in results}
        print_json({"workflows": parts} if several else results[0].to_json())
    else:
        _show(results, scales)
    _tell_newest(directory, results[0].plan)
    if not all(result.sustained for result in results):
        raise typer.Exit(EXIT_OVERLOAD)
    if any(result.breaches for result in results):
        raise typer.Exit(EXIT_MISSED)


def _require_own_name(directory: Path, overrides: Sequence[str], scales: Mapping[str, float], workflow: str) -> None:
    """BadParameter for an option that names another workflow than that of the project."""
    given = [*scales.keys() - {""}, *([workflow] if workflow else [])]
    if not given:
        return
    own = load_project(directory, overrides, profiles=False, files=False).workflow.name
    for name in given:
        if name != own:
            option = f"--workflow {name}" if name == workflow else f"--rate-scale {name}=..."
            raise unknown_workflow(option, name, (own,))


def _tell_newest(directory: Path, plan_hash: str) -> None:
    """Say how to report on the plan that was measured, if it is not the newest one."""
    newest = Store.of(directory).latest()
    if newest is not None and newest.plan_hash != plan_hash:
        report = f"jellybean report {shell_text(directory)} --plan {plan_hash[:HASH_DIGITS]}"
        say(f"the plan that is served is not the newest one; its report: {report}")


def _show(results: Sequence[BenchResult], scales: Mapping[str, float]) -> None:
    """The measurements as tables, with their verdicts."""
    for result in results:
        out.print(bench_table(result))
        of = f"{result.workflow}: " if len(results) > 1 else ""
        errors.print(f"{of}{result.verdict}", style=GOOD if result.sustained else f"bold {BAD}")
        for breach in result.breaches:
            if breach not in result.caveats:  # which `measure` has printed
                warn(f"{of}{breach}")
    if any(factor != 1.0 for factor in scales.values()):
        times = ", ".join(f"{factor:g}{f' ({name})' if name else ''}" for name, factor in scales.items())
        say(
            f"measured at {times} times the planned rate; `jellybean report` shows only "
            "measurements at the planned rate"
        )


@app.command(
    epilog=example(
        "jellybean report my-digits",
        "jellybean report my-digits --html report.html",
        "jellybean report my-digits --json",
        "jellybean report my-digits --plan running",
        "jellybean report my-digits --between 2026-11-20 2026-11-21",
        "jellybean report my-digits --drift --since 2h",
    )
)
@takes_gateway
def report(
    directory: Directory,
    overrides: Overrides = None,
    json: Json = False,
    html: Annotated[
        Path | None,
        typer.Option(help="HTML file to write; DIR/report.html by default, with --plan DIR/report-HASH.html."),
    ] = None,
    at: GatewayOptions = GatewayOptions(),
    drift: Annotated[
        bool,
        typer.Option("--drift", help="What has left its prediction while served; exit status 5 if any has."),
    ] = False,
    since: Annotated[str, typer.Option(metavar="TIME", help="With --drift: from then on, as of `cost`.")] = "1d",
    ledger: LedgerAt = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            help="An earlier plan: the first digits of its hash, a plan file, or the word running (which is served).",
        ),
    ] = None,
    between: Between = None,
) -> None:
    """Compare predictions and measurements of the newest plan; writes a self-contained HTML page.

    With --gateway or --context, of the plan that is served there. What was served: in the last week, by the plan of
    --plan, or --between.
    """
    check_project(directory, overrides)
    endpoint = at.endpoint(directory)
    if drift:
        if between is not None:
            raise typer.BadParameter("--drift and --between exclude each other: --drift has --since")
        show_drift(directory, ledger, since, endpoint, json=json)
        return
    if html is not None:
        checked_file("--html", html)
    named = _hash_of(directory, plan, endpoint)
    store = shown_store(directory, endpoint)
    asked = at.arguments(directory)
    built = build_report(store, named, "" if endpoint is None else asked)
    span = asked_span(between, "" if plan is None else built.plan_hash, time.time())
    with open_ledger_source(directory, ledger, endpoint) as source:
        history, nothing = _served(source, store, built, span, between)
    if json:
        asked_for = {"served": None} if nothing else {}
        print_json(built.to_json() | (asked_for if history is None else {"served": history.to_json()}))
        if html is None:
            return
    else:
        out.print(to_table(built))
        print_served(history, nothing, asked)
    path = html or directory / ("report.html" if plan is None else f"report-{built.plan_hash[:HASH_DIGITS]}.html")
    page = render_html(built, history, nothing)
    if html is None:
        write_file(path, page)
    else:
        write_output(path, page)
    if not json:
        out.print(f"report: {path.resolve()}", soft_wrap=True)


def _served(
    source: LedgerSource, store: Store, report: Report, span: Span, between: tuple[str, str] | None
) -> tuple[Served | None, str]:
    """What was served in a span, or that nothing was if it was asked for.

    Neither, with a warning, if a gateway does not say.
    """
    try:
        found = ask_served(source, store, report, span)
    except RequestError as error:
        warn(f"the report is without what was served and what that cost: {error.reason}")
        return None, ""
    return found, nothing_served(span, between) if found is None else ""


def _hash_of(directory: Path, plan: str | None, endpoint: Endpoint | None) -> str | None:
    """The hash of the plan that `--plan` names, or its first digits; without it of the plan that a gateway serves."""
    served = None if endpoint is None else served_document(endpoint)
    if served is not None:
        record_once(directory, served)
    if plan is None:
        return None if served is None else str(served["hash"])
    if plan != RUNNING and not plan.endswith(".json"):
        return plan
    document = served if plan == RUNNING and served is not None else PlanFile(directory).named(plan).document
    if plan == RUNNING:
        record_once(directory, document)
    return str(document["hash"])


@app.command(epilog=example("jellybean demo my-digits"))
def demo(
    directory: Directory,
    overrides: Overrides = None,
    duration: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds of load at the declared rate.")] = 30.0,
    json: Json = False,
) -> None:
    """Run all steps on the digits example: profile, plan, serve, measure, report; repeats its warnings at the end.

    With --json the report is printed as JSON to stdout, and what the steps print to stderr.
    """
    with collected_warnings() as warnings:
        with redirect_stdout(sys.stderr) if json else nullcontext():
            _demo(directory, overrides, duration)
        report(directory, json=json)
    if warnings:
        errors.print("what limits these figures, as said in between:", style=f"bold {WARN}")
        for text in warnings:
            errors.print(f"- {text}", style=WARN, soft_wrap=True)


def _demo(directory: Path, overrides: list[str] | None, duration_s: float) -> None:
    from jellybean.cli.planning.plan import plan
    from jellybean.cli.planning.profile import profile
    from jellybean.cli.serving.serve import down, start
    from jellybean.serving.local.settings import LaunchSettings

    copied = not (directory / "workflow.yaml").exists()
    if copied:
        copy_example(Example.DIGITS, directory)
        out.print(f"{directory}: copied from the example digits")
    profile(directory, overrides, fresh=copied)  # the figures that come with the example are another machine's
    plan(directory, overrides)
    project = open_project(directory, overrides, stale=False)
    _predict(project)
    start(project, LaunchSettings(), detach=True)
    try:
        for result in (
            measure(directory, overrides or (), duration_s=duration_s),
            measure(directory, overrides or (), saturate=True),
        ):
            for text in (*([] if result.sustained else [result.verdict]), *result.breaches):
                warn(text)
    finally:
        down(directory)


def measure(
    directory: Path,
    overrides: Sequence[str] = (),
    *,
    seed: int = 0,
    duration_s: float | None = None,
    rate_scale: float = 1.0,
    saturate: bool = False,
    endpoint: Endpoint | None = None,
    documents: Path | None = None,
    time_limit_s: float | None = None,
) -> BenchResult:
    """Measure the plan that is served, at the rate that it was made for; record it in the report store.

    `overrides`: if given, the rate that the documents declare with them is offered instead. `endpoint`: a gateway
    elsewhere, instead of the project's own. `documents`: folder with a copy of the documents and held-out data, without
    models; by default they are those of `directory`. `time_limit_s`: of the command.
    """
    load = partial(load_project, documents or directory, files=documents is None)
    load(overrides)  # wrong documents are told before what is up
    document = served_document(endpoint or owner_endpoint(directory))
    options = overrides or from_document(document).overrides
    quoted = shlex.quote(str(directory))
    again = f"jellybean plan {quoted}, then jellybean apply {quoted}, serve one without"
    with options_of_plan(() if overrides else options, f"the plan that is served was made with this option; {again}"):
        project = load(options)
    with progress("saturate" if saturate else "bench") as advance, command_limit(time_limit_s):
        if saturate:
            guess = predicted_rate_per_s(directory, document["hash"])
            result = bench_module.saturate(
                project,
                start_rate_per_s=guess,
                seed=seed,
                window_s=duration_s,
                progress=advance,
                endpoint=endpoint,
            )
        else:
            seconds = duration_s or DURATION_S
            if overrides:
                rate_scale *= _declared_per_s(project) / planned_rate_per_s(document)
            result = bench_module.bench(
                project, duration_s=seconds, rate_scale=rate_scale, seed=seed, progress=advance, endpoint=endpoint
            )
    if result.plan != document["hash"]:
        raise ServingError("another plan took over before the measurement began; nothing was stored: measure again")
    if not result.ended_by_time_limit:
        with recorded_if_possible("this measurement"):
            record_measurement(directory, document, result.to_dict())
    for caveat in (*result.caveats, *cut_short_notes(result, duration_s, saturate=saturate)):
        warn(caveat)
    return result


def _declared_per_s(project: Project) -> float:
    """Requests per second of all sites that the documents declare, after `--set`."""
    sites = project.infrastructure.sites
    return min(source.rate_per_s * sites.get(source.tier, 1) for source in project.workflow.sources.values())


def _predict(project: Project) -> None:
    plan = load_current_plan(project)
    with progress("simulate") as advance:
        record_prediction(project.directory, plan, predict(plan, progress=advance))


def bench_table(result: BenchResult) -> Table:
    """The figures of a measurement, with what was counted over which window."""
    table = Table("figure", "measured", title=f"{result.workflow}: measured", title_justify="left")
    table.add_row(
        "sent", f"{result.offered} at {rate_text(result.rate_per_s, 4)} in the window of {result.duration_s:g} s"
    )
    table.add_row("of these", outcome_text(result.outcomes))
    throughput = f"{result.throughput_per_s:.2f}/s"
    if result.answered_in_window is not None:
        throughput += f": {result.answered_in_window} answered within the {result.duration_s:g} s"
        if result.answered_of_warmup:
            sent = result.answered_in_window - result.answered_of_warmup
            throughput += f" ({sent} sent in it, {result.answered_of_warmup} in the warm-up)"
        throughput += f", {result.answered_later} later" if result.answered_later else ""
    table.add_row("throughput", throughput)
    if result.uncounted:
        after = " and for the accuracy after it" if result.uncounted > result.rate_per_s * result.warmup_s + 1 else ""
        table.add_row("not counted", f"{result.uncounted} before the window ({result.warmup_s:g} s of warm-up){after}")
    if result.highest_rate_per_s is not None:
        at_least = "at least " if result.ended_by_time_limit else ""
        table.add_row("highest sustained rate", f"{at_least}{result.highest_rate_per_s:.2f}/s")
    for label, value in (
        ("latency p50", result.latency_p50_s),
        ("latency p90", result.latency_p90_s),
        ("latency p99", result.latency_p99_s),
    ):
        if value is not None:
            table.add_row(label, formats.duration(value))
    if result.accuracy is not None:
        margin = result.accuracy_margin
        sample = f" (sampling error ± {margin:.1f})" if margin is not None else ""
        table.add_row("accuracy", f"{result.accuracy:.2f} %{sample}")
    if result.cost_usd_per_h is not None:
        table.add_row("cost", f"{formats.usd(result.cost_usd_per_h)} USD/h")
    for worker, busy in result.utilisation.items():
        table.add_row(f"utilisation {worker}", formats.percent(busy))
    return table
