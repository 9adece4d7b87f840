"""bench, report, demo: commands that measure and show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from jellybean.cli.app import Directory, Json, Overrides, Seed, app, example
from jellybean.cli.console import EXIT_OVERLOAD, errors, out, print_json, progress
from jellybean.cli.documents import Example, init
from jellybean.documents import load_project
from jellybean.planning import current_plan, state_folder
from jellybean.predict import predict
from jellybean.report.html import render_html
from jellybean.report.report import build_report
from jellybean.report.store import Store
from jellybean.report.table import to_table
from jellybean_solver.plan_document import to_document


@app.command(
    epilog=example(
        "jellybean bench my-digits", "jellybean bench my-digits --saturate", "jellybean bench my-digits --json"
    )
)
def bench(
    directory: Directory,
    overrides: Overrides = None,
    json: Json = False,
    seed: Seed = 0,
    duration: Annotated[float, typer.Option(min=1, help="Seconds of load.")] = 30.0,
    rate_scale: Annotated[float, typer.Option(min=0.001, help="Multiply all sources' rates.")] = 1.0,
    saturate: Annotated[bool, typer.Option("--saturate", help="Find the highest sustained rate.")] = False,
) -> None:
    """Offer the workflow's own rates on held-out inputs to the running plan; exit status 4 when it does not keep up."""
    record = measure(
        directory, overrides or (), seed=seed, duration_s=duration, rate_scale=rate_scale, saturate=saturate
    )
    if json:
        print_json(record)
    else:
        out.print(_bench_table(record))
        verdict = record.get("verdict", "")
        errors.print(verdict, style="green" if record["sustained"] else "bold red", markup=False)
    if not record["sustained"]:
        raise typer.Exit(EXIT_OVERLOAD)


@app.command(
    epilog=example(
        "jellybean report my-digits",
        "jellybean report my-digits --html report.html",
        "jellybean report my-digits --json",
    )
)
def report(
    directory: Directory,
    json: Json = False,
    html: Annotated[Path | None, typer.Option(help="Where to write the page; DIR/report.html by default.")] = None,
) -> None:
    """Show the newest plan, predicted beside measured, and write a self-contained HTML page."""
    found = build_report(Store(state_folder(directory) / "report.db"))
    if json:
        print_json(found.to_json())
        if html is None:
            return
    else:
        out.print(to_table(found))
    path = html or directory / "report.html"
    path.write_text(render_html(found), encoding="utf-8")
    if not json:
        out.print(f"report: {path.resolve()}", soft_wrap=True)


@app.command(epilog=example("jellybean demo my-digits"))
def demo(
    directory: Directory,
    duration: Annotated[float, typer.Option(min=1, help="Seconds of load at the declared rate.")] = 30.0,
) -> None:
    """The whole main job on the digits example: profile, plan, serve, measure, report."""
    from jellybean.cli.plan import plan, profile
    from jellybean.cli.serve import down, start

    if not (directory / "workflow.yaml").exists():
        init(Example.DIGITS, directory)
    profile(directory)
    plan(directory)
    project = load_project(directory)
    _predict_and_store(project.directory)
    start(project, detach=True)
    try:
        measure(directory, (), seed=0, duration_s=duration)
        measure(directory, (), seed=0, duration_s=duration, saturate=True)
    finally:
        down(directory)
    report(directory)


def measure(
    directory: Path,
    overrides: tuple[str, ...] | list[str],
    *,
    seed: int,
    duration_s: float,
    rate_scale: float = 1.0,
    saturate: bool = False,
) -> dict[str, Any]:
    """Bench the running plan, keep the measurement in the report store, return its record."""
    from jellybean.serving.bench import bench as run
    from jellybean.serving.bench import saturate as run_saturate

    project = load_project(directory, overrides)
    with progress("saturate" if saturate else "bench") as advance:
        if saturate:
            plan, _ = current_plan(project)
            result = run_saturate(
                project, start_rate_per_s=_predicted_rate(directory, plan), seed=seed, progress=advance
            )
        else:
            result = run(project, duration_s=duration_s, rate_scale=rate_scale, seed=seed, progress=advance)
    record = result.to_dict()
    Store(state_folder(directory) / "report.db").add_measurement(record["plan"], record)
    return record


def _predict_and_store(directory: Path) -> None:
    plan, _ = current_plan(load_project(directory))
    with progress("simulate") as advance:
        record = predict(plan, progress=advance)
    store = Store(state_folder(directory) / "report.db")
    store.add_prediction(to_document(plan)["hash"], record)


def _bench_table(record: dict[str, Any]) -> Table:
    table = Table("figure", "measured", title="bench", title_justify="left")
    return table
