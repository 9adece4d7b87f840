"""`plan --check TRACE`: a gate for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from jellybean.cli.app import picture
from jellybean.cli.console import EXIT_WOULD_BREAK, out, print_json, progress, say, warn
from jellybean.cli.current import tell_renewed
from jellybean.planning.project_plan import unproven


def run_check(
    directory: Path, trace: Path, overrides: Sequence[str], *, seed: int, json: bool, plot: Path | None
) -> None:
    """Replay, print, draw; typer.Exit with status 6 when a target would break."""
    from jellybean.whatif import check_json, check_text, check_trace, save_plot

    if plot is not None:
        picture(plot)
    with progress("check") as advance:
        found = check_trace(directory, trace, overrides, seed=seed, progress=advance)
    tell_renewed(found.project, found.plan, found.renewed)
    if (warning := unproven(found.plan)) is not None:
        warn(warning)
    if json:
        print_json(check_json(found))
    else:
        out.print(check_text(found))
        if found.hint is not None and found.hint.command is not None:
            out.print(f"  {found.hint.command}", style="bold", soft_wrap=True)
    if plot is not None:
        save_plot(found, plot)
        say(f"wrote {plot}")
    if found.replay.breaks:
        raise typer.Exit(EXIT_WOULD_BREAK)
