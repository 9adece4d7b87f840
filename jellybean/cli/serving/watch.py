"""A run that was started: printed, then left alone or watched until it ends."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from jellybean.cli.console import errors, out, print_json, say
from jellybean.cli.exit_status import EXIT_FAILURE
from jellybean.display import formats
from jellybean.display.terminal import BAD, GOOD
from jellybean.folders import STATE_FOLDER, shell_text
from jellybean_protos.addresses import join_address

if TYPE_CHECKING:
    from jellybean.serving.local.running import Running
    from jellybean.serving.local.settings import JoinedSettings, LaunchSettings


def watch(running: Running, serving: Sequence[str], *, detach: bool, as_json: Mapping[str, Any] | None = None) -> None:
    """Print what is served, then report deaths until Ctrl-C, which drains, or `down`; with `detach`, return at once.

    `serving`: lines for people; `as_json`: printed to stdout instead, if given.
    """
    try:
        _show(serving, as_json)
        if detach:
            if as_json is None:
                out.print(f"stop it with: jellybean down {shell_text(running.directory)}", style="bold")
            return
        say("Ctrl-C drains and stops")
        died = running.wait(lambda text: errors.print(text, style=f"bold {BAD}"))
    except KeyboardInterrupt:  # Ctrl-C before `wait` has installed its own handling
        running.left, died = running.down(), None
    if running.left is not None:
        say(stopped_text(running.left))
    if died:
        raise typer.Exit(EXIT_FAILURE)


def stopped_text(left: int) -> str:
    """What became of a run that was stopped, with the number of requests that were left."""
    return "stopped" if not left else f"stopped; {formats.count(left, 'request')} in flight had no answer"


def _show(serving: Sequence[str], as_json: Mapping[str, Any] | None) -> None:
    if as_json is not None:
        print_json(as_json)
        sys.stdout.flush()  # in the foreground, whoever reads it waits for it
        return
    out.print(serving[0], style=GOOD, soft_wrap=True)
    for line in serving[1:]:
        out.print(line, soft_wrap=True)


def run_json(running: Running, settings: LaunchSettings | JoinedSettings, *, host: str) -> dict[str, Any]:
    """The keys that `up --json` and `gateway --json` share. `host`: of the ports for clients."""
    from jellybean.serving.endpoint import owner_endpoint

    state = running.state
    scheme = "http" if settings.tls is None else "https"
    return {
        "workflow": state.workflow,
        "plan": state.plan,
        "socket": owner_endpoint(running.directory).address,
        "address": state.clients_address if settings.port is not None else None,
        "http": f"{scheme}://{join_address(host, settings.http_port)}" if settings.http_port else None,
        "metrics": f"http://127.0.0.1:{settings.metrics_port}/metrics" if settings.metrics_port else None,
        "logs": str(running.directory / STATE_FOLDER / "logs"),
    }
