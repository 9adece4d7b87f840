"""The command line. `main` is the process boundary: errors become one message and an exit status here, nowhere else."""

from __future__ import annotations

import sys

import typer

from jellybean.cli.app import app
from jellybean.cli.console import EXIT_BAD_INPUT, EXIT_FAILURE, EXIT_INFEASIBLE, errors
from jellybean.errors import DocumentError, InfeasibleError, JellyBeanError
from jellybean_agent.errors import AgentError


def main() -> None:
    """Entry point of `jellybean`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status (0 fine, 1 failure, 2 bad input, 3 infeasible, 4 overload)."""
    command = typer.main.get_command(app)
    try:
        command.main(arguments, prog_name="jellybean")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0
    except (JellyBeanError, AgentError, OSError) as error:
        errors.print(str(error) or type(error).__name__, style="red", soft_wrap=True)
        return _status_of(error)
    return 0


def _status_of(error: Exception) -> int:
    if isinstance(error, DocumentError):
        return EXIT_BAD_INPUT
    if isinstance(error, InfeasibleError):
        return EXIT_INFEASIBLE
    return EXIT_FAILURE
