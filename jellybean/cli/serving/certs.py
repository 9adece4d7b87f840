"""certs: certificates for the parts of a workflow, from an authority for development."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Directory, Json, Overrides, app, example
from jellybean.cli.console import out, print_json, say
from jellybean.cli.current import plan_of
from jellybean.documents import load_project
from jellybean.errors import JellyBeanError
from jellybean.folders import state_folder
from jellybean_agent import plan_view, stays_inside_folder
from jellybean_solver import to_document


@app.command(
    epilog=example("jellybean certs my-digits --host gateway.example", "jellybean certs my-digits --client alice")
)
def certs(
    directory: Directory,
    overrides: Overrides = None,
    out_folder: Annotated[Path | None, typer.Option("--out", help="Instead of DIR/.jellybean/certs.")] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", help="Name or IP that clients know the gateway by. May be repeated."),
    ] = None,
    clients: Annotated[list[str] | None, typer.Option("--client", help="Who may infer. May be repeated.")] = None,
    admins: Annotated[list[str] | None, typer.Option("--admin", help="Who may drain too. May be repeated.")] = None,
    hours: Annotated[float, typer.Option(min=0.01, max=8760.0, help="How long the certificates hold.")] = 168.0,
    new_ca: Annotated[
        bool, typer.Option("--new-ca", help="A new authority, believed from now on; the next run signs with it.")
    ] = False,
    json: Json = False,
) -> None:
    """Make or renew certificates for the gateway, every worker of the plan, and clients. Processes go on with them."""
    try:
        from jellybean.serving.enrolment.authority import open_authority
    except ImportError as error:
        raise JellyBeanError("certificates need cryptography: pip install 'jellybean-serving[agent]'") from error
    from jellybean_agent import Identity, Role

    project = load_project(directory, overrides or ())
    view = plan_view(to_document(plan_of(project)))
    folder = out_folder or state_folder(project.directory) / "certs"
    authority = open_authority(folder / "ca", renew=new_ca)
    named = [(Role.CLIENT, name) for name in clients or ["client"]] + [
        (Role.ADMIN, name) for name in admins or ["admin"]
    ]
    named += [(Role.AGENT, worker.name) for worker in view.serving]
    made = {f"{role.value}/{name}": Identity(view.name, role, name) for role, name in named}
    made["gateway"] = Identity(view.name, Role.GATEWAY)
    for path, identity in made.items():
        at = ("localhost", "127.0.0.1", *(hosts or ())) if identity.role is Role.GATEWAY else ()
        authority.equip(_inside(folder, path), identity, hosts=at, life_s=hours * 3600.0)
    if new_ca:
        say(
            "a new authority is believed from now on; it signs from the next `jellybean certs` on: give that when every"
            " process has its files and every box that joined has renewed (after a third of its certificate's life)"
        )
    if json:
        print_json({"folder": str(folder), "identities": {path: identity.uri for path, identity in made.items()}})
        return
    out.print(f"{len(made)} certificates in {folder}, for {hours:g} hours; the same command renews them", style="green")
    out.print(f"{folder / 'ca'} signs them: keep it away from where the others go", style="bold")


def _inside(folder: Path, path: str) -> Path:
    if not stays_inside_folder(path):
        raise JellyBeanError(f"{path!r} is no name: it leads out of {folder}")
    return folder / path
