"""Errors as the command line tells them: one message and a status for people, an `error` object with --json."""

from __future__ import annotations

from typing import Any

from jellybean.cli.console import EXIT_BAD_INPUT, EXIT_FAILURE, EXIT_INFEASIBLE
from jellybean.errors import DocumentError, DocumentProblem, InfeasibleError, OutOfTimeError
from jellybean.serving.errors import RequestError
from jellybean_agent import describe_error


def status_of(error: BaseException) -> int:
    """The exit status that an error ends a command with."""
    if isinstance(error, DocumentError) or _is_input(error):
        return EXIT_BAD_INPUT
    if isinstance(error, InfeasibleError):
        return EXIT_INFEASIBLE
    return EXIT_FAILURE


def text_of(error: BaseException) -> str:
    """The message for people."""
    if isinstance(error, RequestError) and _is_input(error):
        return error.reason
    return describe_error(error, name=True) if isinstance(error, OSError) else str(error) or type(error).__name__


def failure(error: BaseException) -> dict[str, Any]:
    """What --json prints of a command that ended with this error."""
    problems = error.problems if isinstance(error, DocumentError) else ()
    return error_json(_kind(error), text_of(error), problems)


def error_json(kind: str, message: str, problems: tuple[DocumentProblem, ...] = ()) -> dict[str, Any]:
    """`error`: its kind, the message for people, and for documents each problem with file, line and path."""
    return {"error": {"kind": kind, "message": message, "problems": [problem.to_dict() for problem in problems]}}


def _kind(error: BaseException) -> str:
    kinds = {DocumentError: "documents", InfeasibleError: "infeasible", OutOfTimeError: "time_limit"}
    if _is_input(error):
        return "input"
    return next((kind for base, kind in kinds.items() if isinstance(error, base)), "failure")


def _is_input(error: BaseException) -> bool:
    """Whether a request was refused for its own tensors."""
    return isinstance(error, RequestError) and error.status == "INVALID_ARGUMENT"
