"""Commands up, apply and down."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jellybean.cli.app import (
    AllowPython,
    Directory,
    HedgeAfter,
    Json,
    LogFormat,
    Overrides,
    ServeLedger,
    Stale,
    app,
    example,
    parse_allowed_python,
    parse_hedge_after,
)
from jellybean.cli.console import out, print_json, progress
from jellybean.cli.documents import check_project
from jellybean.cli.exit_status import EXIT_FAILURE
from jellybean.cli.projects import open_served_project
from jellybean.cli.serving.gateway_options import AdminTls, GatewayAt, GatewayOptions, check_settings
from jellybean.cli.serving.project_settings import served_project
from jellybean.cli.serving.servable import MAX_WORKERS, servable, worker_count
from jellybean.cli.serving.watch import run_json, watch
from jellybean.display.terminal import GOOD
from jellybean.documents import AnyProject, require_folder
from jellybean.documents.layout import document_files
from jellybean.errors import InputError
from jellybean.serving.run_processes import GATEWAY_NAME
from jellybean.serving.run_state import is_serving_joined, run_of
from jellybean_solver import to_document

if TYPE_CHECKING:
    from jellybean.serving.local.settings import LaunchSettings


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
    ledger: ServeLedger = "",
    allow_python: AllowPython = None,
    json: Json = False,
) -> None:
    """Serve the plan on this machine: a gateway and one agent process per worker, with emulated links.

    Ctrl-C drains.
    """
    from jellybean.serving.local.settings import LaunchSettings

    if log_format is not None:
        os.environ["JELLYBEAN_LOG"] = log_format  # inherited by all processes, including restarted ones
    settings = LaunchSettings(
        port=port,
        http_port=http_port,
        tls=tls,
        insecure=insecure,
        metrics_port=metrics_port,
        hedge_after=parse_hedge_after(hedge_after),
        ledger=ledger,
        allow_python=parse_allowed_python(allow_python),
    )
    check_settings(settings)
    project = open_served_project(directory, overrides, stale=stale, shows_times=True)
    start(project, settings, detach=detach, json=json)


def start(project: AnyProject, settings: LaunchSettings, *, detach: bool, json: bool = False) -> None:
    """Start the plan's processes; blocks unless detached."""
    from jellybean.serving.local import launcher
    from jellybean.serving.local import running as running_module

    plan, workers = servable(project)
    settings = replace(settings, project=served_project(project))
    with progress("up") as advance:
        running = launcher.up(project.directory, to_document(plan), settings, detach=detach, progress=advance)
    scheme = "https" if settings.tls else "http"
    places = [str(running.state.clients_address)] if settings.port is not None else []
    places += [f"{scheme}://127.0.0.1:{settings.http_port}"] if settings.http_port else []
    at = f" on {' and '.join(places)}" if places else ""
    what = f"{plan.name} ({', '.join(one.name for one in plan.workflows)})" if plan.workflows else plan.name
    serving = f"serving {what}{at} with {worker_count(workers)}"
    names = [process.name for process in running.state.processes if process.name != GATEWAY_NAME]
    with running_module.stopped_on_failure(running):
        found = run_json(running, settings, host="127.0.0.1") | {"workers": dict.fromkeys(names, "ready")}
    watch(running, [serving], detach=detach, as_json=found if json else None)


@app.command(
    epilog=example(
        "jellybean apply my-digits",
        "jellybean plan my-digits --set slo.accuracy=80 && jellybean apply my-digits",
        "jellybean apply my-digits --gateway gateway.example:8001 --tls certs/admin/admin",
    )
)
def apply(
    directory: Directory,
    overrides: Overrides = None,
    stale: Stale = False,
    allow_python: AllowPython = None,
    gateway: GatewayAt = None,
    tls: AdminTls = None,
    peers: Annotated[
        Path | None, typer.Option(help="With --gateway: JSON with the addresses of workers that are new or have moved.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds to wait for the new plan's workers.")
    ] = 120.0,
    replan: Annotated[
        bool, typer.Option("--replan", help="Plan again first, even if plan.json matches documents and options.")
    ] = False,
    json: Json = False,
) -> None:
    """Replace the running plan by plan.json without losing requests: start new workers, switch, stop old ones.

    Boxes that joined download the new plan's models, then switch. If the documents have changed since plan.json was
    made, it is made again first, with the same --set.
    """
    from jellybean.serving.client import served_document
    from jellybean.serving.local import replace_plan

    endpoint, allowed = GatewayOptions(gateway, tls).endpoint(directory), parse_allowed_python(allow_python)
    if peers is not None and endpoint is None:
        raise typer.BadParameter("--peers belongs to --gateway: of a gateway here, its own file is read again")
    require_folder(directory)
    if endpoint is not None and not any(file.exists() for file in document_files(directory).values()):
        raise InputError(f"{directory} is no project: `apply` needs the project's folder, where its plan was made")
    project = open_served_project(directory, overrides, stale=stale)
    if endpoint is None:  # nothing is written unless a plan is served
        replace_plan.require_replaceable(directory)
    else:
        served_document(endpoint)
    has_limit = endpoint is None and not is_serving_joined(directory)
    plan, workers = servable(project, max_workers=MAX_WORKERS if has_limit else None, anew=replan)
    document = to_document(plan)
    with progress("apply") as advance:
        if endpoint is not None:
            changed = replace_plan.apply_at(endpoint, document, peers, timeout_s=timeout, progress=advance)
        else:
            changed = replace_plan.apply(
                project.directory, document, progress=advance, start_timeout_s=timeout, allow_python=allowed
            )
    if json:
        print_json({"workflow": plan.name, "plan": document["hash"], "changed": changed})
    elif changed:
        out.print(f"serving the new plan of {plan.name} with {worker_count(workers)}", style=GOOD)
    else:
        out.print(f"{plan.name} is already served with this plan")


@app.command(epilog=example("jellybean down my-digits"))
def down(
    directory: Directory,
    overrides: Overrides = None,
    timeout: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds to wait for in-flight requests.")] = 30.0,
    gateway: GatewayAt = None,
    tls: AdminTls = None,
    json: Json = False,
) -> None:
    """Drain and stop what `up --detach` or `gateway --detach` started. Boxes that joined wait for the next gateway."""
    from jellybean.serving.client import Client
    from jellybean.serving.local import running

    endpoint = GatewayOptions(gateway, tls).endpoint(directory)
    if endpoint is not None or directory.exists() or run_of(directory.resolve()) is None:
        check_project(directory, overrides)  # else the run of a project that was removed
    if endpoint is None:
        left = running.down(directory, timeout_s=timeout)
    else:
        with Client.at(endpoint) as client:
            left = client.stop(timeout)
    if json:
        print_json({"stopped": True, "left": left})
    else:
        out.print("stopped" if not left else f"stopped; {left} requests were still in flight after {timeout:g} s")
    if left:
        raise typer.Exit(EXIT_FAILURE)
