"""`plan --check TRACE`: replay a rate trace over the current plan, for example in CI."""

from __future__ import annotations

from pathlib import Path

import typer

from jellybean.cli.console import out, print_json, progress, say, warn
from jellybean.cli.current_plan import warn_if_replanned
from jellybean.cli.exit_status import EXIT_WOULD_BREAK
from jellybean.documents import AnyProject
from jellybean.report.plans.proof import unproven


def run_check(project: AnyProject, trace: Path, *, what_if: bool, seed: int, json: bool, plot: Path | None) -> None:
    """Replay the trace and print or draw the result; typer.Exit(6) if a target would be missed."""
    from jellybean.whatif import check_trace

    with progress("check") as advance:
        checked = check_trace(project, trace, seed=seed, progress=advance, writes=not what_if)
    warn_if_replanned(project, checked.plan, checked.renewed, what_if=what_if)
    if (warning := unproven(checked.plan)) is not None:
        warn(warning)
    if json:
        print_json(checked.json())
    else:
        out.print(checked.text())
        if checked.hint is not None and checked.hint.command is not None:
            out.print(f"  {checked.hint.command}", style="bold", soft_wrap=True)
    if plot is not None:
        checked.save_picture(plot)
        say(f"wrote {plot}")
    if checked.replay.breaks:
        raise typer.Exit(EXIT_WOULD_BREAK)
