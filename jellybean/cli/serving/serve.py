"""Commands up, apply and down."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jellybean.cli.app import (
    AllowPython,
    Directory,
    HedgeAfter,
    LogFormat,
    Overrides,
    Stale,
    app,
    example,
    parse_allowed_python,
    parse_hedge_after,
)
from jellybean.cli.console import EXIT_FAILURE, errors, out, progress, say, warn
from jellybean.cli.current_plan import load_current_plan, operators_without_model
from jellybean.cli.documents import check_project
from jellybean.cli.projects import open_project
from jellybean.documents import Project
from jellybean.documents.layout import holds_several_workflows, workflow_folders
from jellybean.errors import JellyBeanError
from jellybean.planning.project_plan import unproven
from jellybean_solver import Plan, request_streams, to_document

if TYPE_CHECKING:
    from jellybean.serving.local.settings import LaunchSettings

MAX_WORKERS = 100  # worker processes on one machine


@app.command(epilog=example("jellybean up my-digits", "jellybean up my-digits --detach && jellybean down my-digits"))
def up(
    directory: Directory,
    overrides: Overrides = None,
    stale: Stale = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return when ready; stop it with `jellybean down`.")] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Loopback port of the gateway for clients; 0 picks a free port."),
    ] = None,
    http_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Loopback port for HTTP (Open Inference Protocol); 0 for none.")
    ] = 0,
    tls: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the gateway's certificate for TLS on the ports, such as DIR/.jellybean/certs/gateway."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Open the ports without TLS: any user of this machine can send requests.")
    ] = False,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Loopback port for the gateway's Prometheus metrics; 0 for none.")
    ] = 0,
    log_format: LogFormat = None,
    hedge_after: HedgeAfter = None,
    allow_python: AllowPython = None,
) -> None:
    """Serve the plan on this machine: a gateway and one agent process per worker, with emulated links.

    Ctrl-C drains.
    """
    from jellybean.serving.local.settings import LaunchSettings

    if holds_several_workflows(directory):
        one = next(iter(workflow_folders(directory).values()))
        raise JellyBeanError(
            f"{directory}: several workflows can be planned and simulated together, but not served yet; "
            f"to serve one of them with its own plan: jellybean up {one}"
        )
    if log_format is not None:
        os.environ["JELLYBEAN_LOG"] = log_format  # inherited by all processes, including restarted ones
    project = open_project(directory, overrides, stale=stale)
    settings = LaunchSettings(
        port=port,
        http_port=http_port,
        tls=tls,
        insecure=insecure,
        metrics_port=metrics_port,
        hedge_after=parse_hedge_after(hedge_after),
        allow_python=parse_allowed_python(allow_python),
    )
    start(project, settings, detach=detach)


def servable(project: Project) -> tuple[Plan, int]:
    """Load the plan; returns it and its number of workers. JellyBeanError if it cannot be served on this machine."""
    name, operators = project.workflow.name, project.workflow.operators
    _require_models(name, [o for o, spec in operators.items() if not any(v.is_served for v in spec.variants.values())])
    plan = load_current_plan(project)
    if len(request_streams(plan)) > 1:
        raise JellyBeanError(
            f"{plan.name}: its sources form several independent request streams; "
            "to serve them, split the workflow into one per stream"
        )
    _require_models(plan.name, operators_without_model(plan))
    workers = sum(plan.sites.get(worker.tier, 1) for worker in plan.workers)
    if workers > MAX_WORKERS:
        fewer = "".join(f"; to serve two sites: --set sites.{tier}=2" for tier in list(plan.sites)[:1])
        raise JellyBeanError(
            f"{plan.name} has {workers:,} workers, each of which would be a process; "
            f"at most {MAX_WORKERS} can be served on one machine{fewer}"
        )
    if (warning := unproven(plan)) is not None:
        warn(warning)
    return plan, workers


def _worker_count(workers: int) -> str:
    return f"{workers:,} worker{'' if workers == 1 else 's'}"


def _require_models(name: str, missing: Sequence[str]) -> None:
    if missing:
        raise JellyBeanError(
            f"{name} can be planned and simulated, but not served: no model file for {', '.join(missing)}; "
            "add `model:` and `sha256:`, or `python:`, to the variants in workflow.yaml"
        )


def start(project: Project, settings: LaunchSettings, *, detach: bool) -> None:
    """Start the plan's processes; blocks unless detached."""
    from jellybean.serving.local import launcher

    plan, workers = servable(project)
    with progress("up") as advance:
        running = launcher.up(project.directory, to_document(plan), settings, detach=detach, progress=advance)
    scheme = "https" if settings.tls else "http"
    http = f" and {scheme}://127.0.0.1:{settings.http_port}" if settings.http_port else ""
    at = f" on {running.state.clients_address}" if settings.port is not None else ""
    serving = f"serving {plan.name}{at}{http} with {_worker_count(workers)}"
    if detach:
        out.print(serving, style="green")
        out.print(f"stop it with: jellybean down {project.directory}", style="bold")
        return
    try:
        out.print(serving, style="green")
        say("Ctrl-C drains and stops")
        died = running.wait(lambda text: errors.print(text, style="bold red"))
    except KeyboardInterrupt:  # Ctrl-C before `wait` has installed its own handling
        running.down()
        return
    if died:
        raise typer.Exit(EXIT_FAILURE)


@app.command(epilog=example("jellybean apply my-digits", "jellybean apply my-digits --set slo.accuracy=80"))
def apply(
    directory: Directory, overrides: Overrides = None, stale: Stale = False, allow_python: AllowPython = None
) -> None:
    """Replace the running plan by the current one without losing requests: start new workers, switch, stop old ones."""
    from jellybean.serving.local import replace_plan

    project = open_project(directory, overrides, stale=stale)
    plan, workers = servable(project)
    with progress("apply") as advance:
        changed = replace_plan.apply(
            project.directory, to_document(plan), progress=advance, allow_python=parse_allowed_python(allow_python)
        )
    if changed:
        out.print(f"serving the new plan of {plan.name} with {_worker_count(workers)}", style="green")
    else:
        out.print(f"{plan.name} is already served with this plan")


@app.command(epilog=example("jellybean down my-digits"))
def down(
    directory: Directory,
    overrides: Overrides = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for in-flight requests.")] = 30.0,
) -> None:
    """Drain and stop what `up --detach` started."""
    from jellybean.serving.local import running

    check_project(directory, overrides)
    left = running.down(directory, timeout_s=timeout)
    out.print("stopped" if not left else f"stopped; {left} requests were still in flight after {timeout:g} s")
    if left:
        raise typer.Exit(EXIT_FAILURE)
