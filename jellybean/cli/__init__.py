"""The command line. `main` is the process, `run` one command line; neither imports what the command does not need."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import nullcontext

from jellybean.cli.command_table import PROGRAM, command_in
from jellybean.cli.exit_status import EXIT_BAD_INPUT, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_TERMINATED

# Commands that end what they started before they end themselves, however long that takes: requests are drained, a
# checkpoint is saved, what was changed is changed back.
UNHURRIED = ("up", "apply", "down", "gateway", "demo", "deploy", "rollback", "undeploy", "operator", "train")

_COMPLETES = f"_{PROGRAM.upper()}_COMPLETE"  # set by the shell's script, which gives no arguments


def main() -> None:
    """Entry point of `jellybean`."""
    from jellybean.cli.closed_pipes import end_at_closed_pipes

    end_at_closed_pipes()
    status = _run_until_signalled(sys.argv[1:])
    sys.stdout.flush()  # a pipe that is closed is noticed at the latest here
    sys.exit(status)


def _run_until_signalled(arguments: list[str]) -> int:
    """As `run`; after Ctrl-C or SIGTERM the process ends here, within a second if the command serves nothing.

    The interpreter's own end, which takes half a second once torch is imported, is left out.
    """
    row = command_in(arguments)
    if _COMPLETES in os.environ or row is None:
        return run(arguments)
    from jellybean.process_end import (
        end_at_once_after_signals,
        end_interrupted,
        ended_soon_after_signals,
        ignore_signals,
    )

    atexit.register(ignore_signals)  # the first one that is registered runs last
    is_unhurried = row.name in UNHURRIED

    def last_words() -> None:
        if "--json" in arguments:
            print('{"error": {"kind": "interrupted", "message": "interrupted", "problems": []}}')
        print("interrupted", file=sys.stderr)

    with nullcontext() if is_unhurried else ended_soon_after_signals(last_words):
        status = run(arguments)
    if status in (EXIT_INTERRUPTED, EXIT_TERMINATED):
        end_interrupted(status)
    if not is_unhurried:  # the others may still stop what they serve
        end_at_once_after_signals(status)
    return status


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status (docs/cli.md lists them)."""
    status = None if _COMPLETES in os.environ else _run_without_typer(arguments)
    if status is not None:
        return status
    try:
        from jellybean.cli.command_line import run_command_line

        return run_command_line(arguments)
    except ModuleNotFoundError as error:
        from jellybean_protos.extras import missing_module_text

        row = command_in(arguments)
        text = missing_module_text(error, row.extras if row is not None else ())
        if not text:
            raise
        _print_failure(f"{PROGRAM}{f' {row.name}' if row is not None else ''}: {text}", "--json" in arguments)
        return EXIT_FAILURE


def _run_without_typer(arguments: list[str]) -> int | None:
    """The help and the version of the program, for which nothing else is imported; None for other command lines."""
    first = arguments[0] if arguments else ""
    if first == "--version":
        from jellybean.cli.program_help import program_version

        print(program_version())
        return 0
    if first in ("", "--help", "-h"):
        from jellybean.cli.program_help import program_help

        print(program_help())
        return 0 if first else EXIT_BAD_INPUT
    return None


def _print_failure(text: str, as_json: bool) -> None:
    """Print an error without the libraries that print others: they may be what is missing."""
    if as_json:
        import json

        print(json.dumps({"error": {"kind": "failure", "message": text, "problems": []}}, indent=2))
    print(text, file=sys.stderr)
