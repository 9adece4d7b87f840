"""token, gateway: a plan served without the local launcher, by boxes that join."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Directory, HedgeAfter, LogFormat, Overrides, app, example, hedge_text
from jellybean.cli.console import out, say
from jellybean.cli.current import plan_of
from jellybean.documents import load_project
from jellybean.errors import JellyBeanError
from jellybean.folders import state_folder
from jellybean_agent import plan_view
from jellybean_solver import to_document


@app.command(epilog=example("jellybean token my-digits --worker camera-box-1 > token"))
def token(
    directory: Directory,
    worker: Annotated[str, typer.Option(help="The worker of the plan that a box will be.")],
    overrides: Overrides = None,
    minutes: Annotated[float, typer.Option(min=0.01, max=10080.0, help="How long it may be used, by one box.")] = 15.0,
) -> None:
    """Print a token with which one box joins the gateway: jellybean-agent --join GATEWAY --token-file FILE."""
    from jellybean.serving.enrolment.authority import read_authority
    from jellybean.serving.enrolment.enrolment import make_token
    from jellybean_agent import Identity, Role

    project = load_project(directory, overrides or ())
    view = plan_view(to_document(plan_of(project)))
    if worker not in (known := [found.name for found in view.serving]):
        raise JellyBeanError(f"the plan has no worker {worker!r} with something to do; it has {', '.join(known)}")
    folder = state_folder(project.directory)
    authority = read_authority(folder / "certs" / "ca")
    made = make_token(folder / "tokens", authority, Identity(view.name, Role.AGENT, worker), life_s=minutes * 60.0)
    typer.echo(str(made))
    say(f"good for one box, for {minutes:g} minutes")


@app.command(epilog=example("jellybean gateway my-digits --peers peers.json --enrol 0.0.0.0:7002 --port 8001"))
def gateway(
    directory: Directory,
    peers: Annotated[Path, typer.Option(help='JSON: worker -> HOST:PORT; the gateway has the empty name "".')],
    overrides: Overrides = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT instead of its address in the peers file.")] = None,
    enrol: Annotated[str | None, typer.Option(help="HOST:PORT where boxes with a token join.")] = None,
    host: Annotated[str, typer.Option(help="Where clients are served, with --port.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="For clients with a certificate.")] = None,
    log_format: LogFormat = None,
    hedge_after: HedgeAfter = None,
) -> None:
    """Serve the plan with workers on machines of their own, over mutual TLS. First: jellybean certs. Ctrl-C drains."""
    from jellybean.serving import gateway_main

    project = load_project(directory, overrides or ())
    document = to_document(plan_of(project))
    folder = state_folder(project.directory)
    run = folder / "gateway"
    run.mkdir(exist_ok=True)
    (run / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    given: dict[str, object] = {"plan": run / "plan.json", "peers": peers, "links": run / "links", "host": host}
    given |= {"spool": run / "spool", "replaced": run / "replaced"}
    given |= {"tls": folder / "certs/gateway", "ca": folder / "certs/ca", "tokens": folder / "tokens"}
    given |= {"root": project.directory, "listen": listen, "enrol": enrol, "port": port, "log-format": log_format}
    given["hedge-after"] = hedge_text(hedge_after) or None
    out.print(f"serving {document['name']} with workers from {peers}; Ctrl-C drains and stops", style="green")
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    status = gateway_main.main([*options, "--no-emulation"])
    if status:
        raise typer.Exit(status)
