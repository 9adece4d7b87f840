"""Commands token and gateway: serve a plan with workers on other machines, which join with a token."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import (
    Directory,
    HedgeAfter,
    Json,
    LogFormat,
    Overrides,
    ServeLedger,
    Stale,
    app,
    example,
    parse_hedge_after,
)
from jellybean.cli.console import print_json, progress, say
from jellybean.cli.current_plan import load_current_plan
from jellybean.cli.projects import open_served_project
from jellybean.cli.serving.gateway_options import check_settings
from jellybean.cli.serving.project_settings import served_project
from jellybean.cli.serving.servable import servable
from jellybean.cli.serving.watch import run_json, watch
from jellybean.errors import InputError
from jellybean.folders import STATE_FOLDER, state_folder
from jellybean.quantities import did_you_mean
from jellybean_agent import plan_view
from jellybean_protos.addresses import join_address
from jellybean_solver import to_document


@app.command(epilog=example("jellybean token my-digits --worker camera-box-1 > token"))
def token(
    directory: Directory,
    worker: Annotated[str, typer.Option(help="Worker of the plan that the box becomes.")],
    overrides: Overrides = None,
    stale: Stale = False,
    minutes: Annotated[float, typer.Option(min=0.01, max=10080.0, help="Validity of the token.")] = 15.0,
    json: Json = False,
) -> None:
    """Print a token with which one box joins the gateway: jellybean-agent --join GATEWAY --token-file FILE."""
    from jellybean.serving.endpoint import usable_certificates
    from jellybean.serving.enrolment.authority import read_authority
    from jellybean.serving.enrolment.enrolment import make_token
    from jellybean_agent import Identity, Role

    project = open_served_project(directory, overrides, stale=stale)
    view = plan_view(to_document(load_current_plan(project, what_if=bool(overrides))))
    if worker not in (known := [serving.name for serving in view.serving]):
        near = f"; {hint}" if (hint := did_you_mean(worker, known)) else ""
        raise InputError(f"the plan gives no worker {worker!r} work; its workers: {', '.join(known)}{near}")
    folder = state_folder(project.directory)
    with usable_certificates(directory):
        authority = read_authority(folder / "certs" / "ca")
    identity = Identity(view.name, Role.AGENT, worker)
    made = make_token(folder / "tokens", authority, identity, life_s=minutes * 60.0)
    if json:
        print_json({"token": str(made), "worker": worker, "identity": identity.uri, "valid_s": minutes * 60.0})
        return
    typer.echo(str(made))
    say(f"valid once, for {minutes:g} minutes")


@app.command(
    epilog=example(
        "jellybean gateway my-digits --peers peers.json --enrol 0.0.0.0:7002 --port 8001",
        "jellybean gateway my-digits --peers peers.json --detach && jellybean top my-digits",
    )
)
def gateway(
    directory: Directory,
    peers: Annotated[Path, typer.Option(help='JSON: worker -> HOST:PORT; the gateway has the empty name "".')],
    overrides: Overrides = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to listen on; its address in the peers file by default.")
    ] = None,
    enrol: Annotated[str | None, typer.Option(help="HOST:PORT for enrolment with a token.")] = None,
    certificate_hours: Annotated[
        float, typer.Option(min=0.01, max=8760.0, help="Validity of the certificates of boxes that join.")
    ] = 168.0,
    host: Annotated[str, typer.Option(help="Address for clients, with --port and --http-port.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port for clients with a certificate.")] = None,
    http_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for HTTPS clients (Open Inference Protocol); 0 for none.")
    ] = 0,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Loopback port for Prometheus metrics, workers' too; 0 for none.")
    ] = 0,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it answers; stop it with `jellybean down`.")
    ] = False,
    stale: Stale = False,
    log_format: LogFormat = None,
    hedge_after: HedgeAfter = None,
    ledger: ServeLedger = "",
    json: Json = False,
) -> None:
    """Run the gateway for workers on other machines, over mutual TLS. Run `jellybean certs` first. Ctrl-C drains."""
    from jellybean.cli.serving.joining import joining_of
    from jellybean.serving.local.launcher import serve_joined
    from jellybean.serving.local.running import stopped_on_failure
    from jellybean.serving.local.settings import JoinedSettings

    if log_format is not None:
        os.environ["JELLYBEAN_LOG"] = log_format  # inherited by the processes, including restarted ones
    settings = JoinedSettings(
        peers,
        directory.resolve() / STATE_FOLDER,
        listen=listen,
        enrol=enrol,
        certificate_hours=certificate_hours,
        host=host,
        port=port,
        http_port=http_port,
        metrics_port=metrics_port,
        hedge_after=parse_hedge_after(hedge_after),
        ledger=ledger,
    )
    check_settings(settings)
    project = open_served_project(directory, overrides, stale=stale)
    plan, _ = servable(project, max_workers=None)
    settings = replace(settings, project=served_project(project))
    state_folder(directory)
    with progress("gateway") as advance:
        running = serve_joined(project.directory, to_document(plan), settings, detach=detach, progress=advance)
    with stopped_on_failure(running):
        joining = joining_of(running, directory, enrol)
        found = run_json(running, settings, host=host) | {"workers": dict(joining.workers)} | joining.to_json()
    if json:
        watch(running, [], detach=detach, as_json=found)
        return
    http = f" and https://{join_address(host, http_port)}" if http_port else ""
    log = directory / STATE_FOLDER / "logs" / "gateway.log"
    at = f"{running.state.clients_address}{http}"
    serving = f"serving {plan.name} ({running.state.plan[:12]}) on {at}: {joining.summary}; log: {log}"
    watch(running, [serving, *joining.advice()], detach=detach)
