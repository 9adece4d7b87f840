"""A run that was started: left alone, or watched until it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from jellybean.cli.console import EXIT_FAILURE, errors, out, say
from jellybean.display.terminal import BAD, GOOD

if TYPE_CHECKING:
    from jellybean.serving.local.running import Running


def watch(running: Running, serving: str, *, detach: bool) -> None:
    """Print `serving`, then report deaths until Ctrl-C, which drains, or `down`; with `detach`, return at once."""
    if detach:
        out.print(serving, style=GOOD, soft_wrap=True)
        out.print(f"stop it with: jellybean down {running.directory}", style="bold")
        return
    try:
        out.print(serving, style=GOOD, soft_wrap=True)
        say("Ctrl-C drains and stops")
        died = running.wait(lambda text: errors.print(text, style=f"bold {BAD}"))
    except KeyboardInterrupt:  # Ctrl-C before `wait` has installed its own handling
        running.down()
        return
    if died:
        raise typer.Exit(EXIT_FAILURE)
