"""The command line. `main` is the process boundary: errors become one message and an exit status here, nowhere else."""

from __future__ import annotations

import sys

import typer

from jellybean.cli.app import app
from jellybean.cli.console import EXIT_BAD_INPUT, EXIT_FAILURE, EXIT_INFEASIBLE, errors
from jellybean.errors import DocumentError, InfeasibleError, JellyBeanError


def main() -> None:
    """Entry point of `jellybean`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status (0 fine, 1 failure, 2 bad input, 3 infeasible, 4 overload)."""
    command = typer.main.get_command(app)
    try:
        result = command.main(arguments, prog_name="jellybean", standalone_mode=False)
    except typer.Exit as exit_:
        return exit_.exit_code
    except typer.Abort:
        return 130
    except typer.TyperException as error:
        error.show()
        return EXIT_BAD_INPUT
    except (DocumentError, InfeasibleError, JellyBeanError, OSError) as error:
        errors.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return _status_of(error)
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        return 130
    return result if isinstance(result, int) else 0


def _status_of(error: Exception) -> int:
    if isinstance(error, DocumentError):
        return EXIT_BAD_INPUT
    if isinstance(error, InfeasibleError):
        return EXIT_INFEASIBLE
    return EXIT_FAILURE
