"""Commands token and gateway: serve a plan with workers on other machines, which join with a token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Directory, HedgeAfter, LogFormat, Overrides, Stale, app, example, parse_hedge_after
from jellybean.cli.console import out, say
from jellybean.cli.current_plan import load_current_plan
from jellybean.cli.projects import open_project
from jellybean.errors import JellyBeanError
from jellybean.folders import state_folder
from jellybean_agent import plan_view
from jellybean_solver import to_document


@app.command(epilog=example("jellybean token my-digits --worker camera-box-1 > token"))
def token(
    directory: Directory,
    worker: Annotated[str, typer.Option(help="Worker of the plan that the box becomes.")],
    overrides: Overrides = None,
    stale: Stale = False,
    minutes: Annotated[float, typer.Option(min=0.01, max=10080.0, help="Validity of the token.")] = 15.0,
) -> None:
    """Print a token with which one box joins the gateway: jellybean-agent --join GATEWAY --token-file FILE."""
    from jellybean.serving.enrolment.authority import read_authority
    from jellybean.serving.enrolment.enrolment import make_token
    from jellybean_agent import Identity, Role

    project = open_project(directory, overrides, stale=stale)
    view = plan_view(to_document(load_current_plan(project)))
    if worker not in (known := [serving.name for serving in view.serving]):
        raise JellyBeanError(f"the plan has no busy worker {worker!r}; busy workers: {', '.join(known)}")
    folder = state_folder(project.directory)
    authority = read_authority(folder / "certs" / "ca")
    made = make_token(folder / "tokens", authority, Identity(view.name, Role.AGENT, worker), life_s=minutes * 60.0)
    typer.echo(str(made))
    say(f"valid once, for {minutes:g} minutes")


@app.command(epilog=example("jellybean gateway my-digits --peers peers.json --enrol 0.0.0.0:7002 --port 8001"))
def gateway(
    directory: Directory,
    peers: Annotated[Path, typer.Option(help='JSON: worker -> HOST:PORT; the gateway has the empty name "".')],
    overrides: Overrides = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to listen on; its address in the peers file by default.")
    ] = None,
    enrol: Annotated[str | None, typer.Option(help="HOST:PORT for enrolment with a token.")] = None,
    host: Annotated[str, typer.Option(help="Address for clients, with --port.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port for clients with a certificate.")] = None,
    stale: Stale = False,
    log_format: LogFormat = None,
    hedge_after: HedgeAfter = None,
) -> None:
    """Run the gateway for workers on other machines, over mutual TLS. Run `jellybean certs` first. Ctrl-C drains."""
    from jellybean.serving import gateway_main

    project = open_project(directory, overrides, stale=stale)
    document = to_document(load_current_plan(project))
    folder = state_folder(project.directory)
    run = folder / "gateway"
    run.mkdir(exist_ok=True)
    (run / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    given: dict[str, object] = {"plan": run / "plan.json", "peers": peers, "links": run / "links", "host": host}
    given |= {"spool": run / "spool", "replaced": run / "replaced"}
    given |= {"tls": folder / "certs/gateway", "ca": folder / "certs/ca", "tokens": folder / "tokens"}
    given |= {"root": project.directory, "listen": listen, "enrol": enrol, "port": port, "log-format": log_format}
    given["hedge-after"] = parse_hedge_after(hedge_after) or None
    out.print(f"serving {document['name']} with workers from {peers}; Ctrl-C drains and stops", style="green")
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    status = gateway_main.main([*options, "--no-emulation"])
    if status:
        raise typer.Exit(status)
