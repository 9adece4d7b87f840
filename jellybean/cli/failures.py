"""Errors on the command line: message and exit status, and with --json an `error` object."""

from __future__ import annotations

from typing import Any

from jellybean.cli.exit_status import EXIT_BAD_INPUT, EXIT_FAILURE, EXIT_INFEASIBLE
from jellybean.errors import (
    DocumentError,
    DocumentProblem,
    InfeasibleError,
    InputError,
    JellyBeanError,
    OutOfTimeError,
    StaleProfilesError,
)
from jellybean.serving.errors import RequestError


def is_expected(error: BaseException) -> bool:
    """True for an error whose text is for the user; any other one is a fault of the program."""
    from jellybean_agent import AgentError  # imports grpc, which most commands do not need

    return isinstance(error, JellyBeanError | AgentError | OSError)


def status_of(error: BaseException) -> int:
    """Exit status of a command that failed with this error."""
    if isinstance(error, DocumentError) or _is_input(error):
        return EXIT_BAD_INPUT
    if isinstance(error, InfeasibleError):
        return EXIT_INFEASIBLE
    return EXIT_FAILURE


def text_of(error: BaseException) -> str:
    """Message of the error."""
    if isinstance(error, RequestError) and _is_input(error):
        return error.reason
    if isinstance(error, OSError):
        from jellybean_agent import describe_error

        return describe_error(error, name=True)
    return str(error) or type(error).__name__


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The KeyboardInterrupt that an exception is or was raised from; None if there is none.

    Ctrl-C while a library is imported may end as its ImportError (onnxruntime's does). Errors of other types that were
    raised during the handling of an interrupt, such as those of a failed clean-up, are errors of their own.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        if isinstance(cause, KeyboardInterrupt):
            return cause
        chain.append(cause)
        cause = cause.__cause__ or (cause.__context__ if isinstance(cause, ImportError) else None)
    return None


def failure(error: BaseException) -> dict[str, Any]:
    """JSON output of a command that failed with this error."""
    problems = error.problems if isinstance(error, DocumentError) else ()
    found = error_json(_kind(error), text_of(error), problems)
    if isinstance(error, StaleProfilesError):
        found["error"]["stale"] = list(error.stale)
    return found


def error_json(kind: str, message: str, problems: tuple[DocumentProblem, ...] = ()) -> dict[str, Any]:
    """The `error` object: kind, message, and for invalid documents each problem with file, line and path."""
    return {"error": {"kind": kind, "message": message, "problems": [problem.to_dict() for problem in problems]}}


def _kind(error: BaseException) -> str:
    kinds: dict[type[Exception], str] = {
        StaleProfilesError: "stale",
        DocumentError: "documents",
        InfeasibleError: "infeasible",
        OutOfTimeError: "time_limit",
    }
    if _is_input(error):
        return "input"
    return next((kind for base, kind in kinds.items() if isinstance(error, base)), "failure")


def _is_input(error: BaseException) -> bool:
    """True for an unusable input file or value, and for a request that the gateway rejected because of its tensors."""
    return isinstance(error, InputError) or (isinstance(error, RequestError) and error.status == "INVALID_ARGUMENT")
