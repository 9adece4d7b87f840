"""Runs a command line with Typer. Exceptions become a message and an exit status here, at the process boundary."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout

import typer

from jellybean.cli.app import app
from jellybean.cli.command_resources import command_resources
from jellybean.cli.command_table import PROGRAM
from jellybean.cli.exit_status import EXIT_BAD_INPUT, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_TERMINATED
from jellybean.cli.times import note_start
from jellybean.display.terminal import BAD, WARN
from jellybean.termination import TerminatedError, terminated_as_interrupted

HELP = frozenset({"--help", "-h"})
# Base class of all usage errors; Typer exports only its subclass BadParameter.
_UsageError: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def run_command_line(arguments: list[str]) -> int:
    """Run one command line and return its exit status (docs/cli.md lists them)."""
    as_json = "--json" in arguments
    note_start()
    try:
        with command_resources(), terminated_as_interrupted():
            if HELP.isdisjoint(arguments) or sys.stdout.isatty():
                return _run(arguments, as_json=as_json)
            return _run_with_help(arguments, as_json=as_json)
    except BaseException as error:
        status = _report(error, as_json=as_json)
        if status is None:
            raise
        return status


def _report(error: BaseException, *, as_json: bool) -> int | None:
    """Print the error that ended a command and return the exit status; None if the error is not for users.

    Imports what prints: completion and help do without.
    """
    from jellybean.cli.console import errors, print_json
    from jellybean.cli.failures import error_json, failure, interrupt_behind, is_expected, status_of, text_of

    if (interrupt := interrupt_behind(error)) is not None:
        from jellybean.training.processes.environment import is_started_by_train

        if as_json and not is_started_by_train():
            print_json(error_json("interrupted", "interrupted"))
        if not is_started_by_train():
            errors.print("interrupted", style=WARN)
        return EXIT_TERMINATED if isinstance(interrupt, TerminatedError) else EXIT_INTERRUPTED
    if not is_expected(error):
        return None
    if as_json:
        print_json(failure(error))
    errors.print(text_of(error), style=BAD, soft_wrap=True)
    return status_of(error)


def _run_with_help(arguments: list[str], *, as_json: bool) -> int:
    """Run a command line that prints a help; without a terminal its lines are not padded to a terminal's width."""
    from jellybean.cli.console import without_padding

    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            return _run(arguments, as_json=as_json)
    finally:
        sys.stdout.write(without_padding(printed.getvalue()))


def _run(arguments: list[str], *, as_json: bool) -> int:
    """Run the command with Typer. Typer prints usage errors itself, except with --json."""
    command = typer.main.get_command(app)
    try:
        status = command.main(arguments, prog_name=PROGRAM, standalone_mode=not as_json)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else EXIT_FAILURE if exit_.code else 0
    except (typer.Abort, _UsageError) as error:
        return _report_usage(error)
    return status if isinstance(status, int) else 0


def _report_usage(error: Exception) -> int:
    """Print a usage error, or that a prompt was left, as JSON and as text."""
    from jellybean.cli.console import errors, print_json
    from jellybean.cli.failures import error_json

    if isinstance(error, typer.Abort):
        print_json(error_json("interrupted", "interrupted"))
        return EXIT_FAILURE
    message = str(getattr(error, "format_message", error.__str__)())
    print_json(error_json("usage", message))
    errors.print(f"{message} (see jellybean --help)", style=BAD, soft_wrap=True)
    return EXIT_BAD_INPUT
