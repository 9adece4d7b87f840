"""Options of commands that call a gateway: the one that is up for DIR, or one elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from jellybean.serving.endpoint import Endpoint
    from jellybean.serving.local.settings import JoinedSettings, LaunchSettings

GatewayAt = Annotated[
    str | None,
    typer.Option("--gateway", metavar="HOST:PORT", help="A gateway on another machine, instead of the one up for DIR."),
]
AdminTls = Annotated[
    Path | None,
    typer.Option("--tls", metavar="FOLDER", help="With --gateway: an admin's certificate; DIR's by default."),
]


OfWorkflow = Annotated[
    str,
    typer.Option("--workflow", metavar="NAME", help="Which workflow, if the project has several."),
]


def check_settings(settings: LaunchSettings | JoinedSettings) -> None:
    """BadParameter for options of a run that exclude each other, before anything is planned."""
    from jellybean.serving.errors import SettingsError

    try:
        settings.check()
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error


def given_endpoint(directory: Path, gateway: str | None, tls: Path | None, workflow: str = "") -> Endpoint | None:
    """The gateway of `--gateway`; None if it is not given. CertificateError for a missing or invalid certificate."""
    if gateway is None:
        if tls is not None:
            raise typer.BadParameter("--tls belongs to --gateway: a plan that is up here needs no certificate")
        return None
    from jellybean.serving.endpoint import remote_endpoint

    return replace(remote_endpoint(directory, gateway, tls), workflow=workflow)
