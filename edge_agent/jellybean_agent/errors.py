"""The agent's errors, and their mapping to gRPC status codes."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc  # imported where a status is asked for: commands that use only the errors need no grpc


class AgentError(Exception):
    """Root of the agent's errors; its text is one line for a person."""

    is_logged = False  # True once the error has been logged


class TransientError(AgentError):
    """A retry may succeed: a peer is gone, or a worker is shutting down."""


class PermanentError(AgentError):
    """A retry will not succeed."""


class InvalidInputError(PermanentError):
    """A tensor of the request has the wrong dtype, shape or size."""


class RefusedValuesError(InvalidInputError):
    """A model cannot compute with the values of its inputs, although their shapes are right: an index out of range."""


class StateMissingError(TransientError):
    """The worker does not have the state that a chunk of a stream continues. The gateway can rebuild it."""


class ModelError(PermanentError):
    """A model file is missing, altered, or of a kind that the agent does not run."""


class CrashError(PermanentError):
    """The model process crashed, or was killed because a run took too long."""


class PlanViewError(PermanentError):
    """The plan document or another input of the process (address, certificate, token) is invalid."""


class CountersError(PermanentError):
    """Counters cannot be kept in their file: another process counts there, or the disk is full."""


class StatusError(AgentError):
    """A refused or failed call, with the gRPC status to report."""

    def __init__(self, status: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.status = status


_STATUS: tuple[tuple[type[AgentError], str], ...] = (  # error -> name of the gRPC status
    (InvalidInputError, "INVALID_ARGUMENT"),
    (ModelError, "FAILED_PRECONDITION"),
    (PlanViewError, "FAILED_PRECONDITION"),
    (StateMissingError, "ABORTED"),
    (TransientError, "UNAVAILABLE"),
)


_FILE_WORDS = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a file stands where a folder is meant",
    errno.EISDIR: "is a folder, not a file",
    errno.EEXIST: "exists already",
    errno.ENOTEMPTY: "is not empty",
    errno.EACCES: "permission denied: check its owner and permissions",
    errno.EPERM: "permission denied: check its owner and permissions",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full: nothing was written",
    errno.EDQUOT: "the disk quota is used up: nothing was written",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "symbolic links lead round in a circle",
    errno.EMFILE: "too many files are open (see ulimit -n)",
    errno.EADDRINUSE: "the address is taken by another process: choose another port",
    errno.ENOEXEC: "is no program that runs here",
}


def describe_error(error: BaseException, *, name: bool = False) -> str:
    """One line for a person about an exception of a library or the operating system; `name`: include the file name.

    An OSError is described without its errno.
    """
    if not isinstance(error, OSError):
        return next(iter(str(error).splitlines()), "") or type(error).__name__
    if error.errno == errno.ENOENT and error.filename is None and "temporary" in (error.strerror or ""):  # tempfile's
        return "there is no folder for temporary files: set TMPDIR to one that this user may write"
    reason = _FILE_WORDS.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if name and error.filename is not None else reason


def status_of(error: AgentError) -> grpc.StatusCode:
    """The gRPC status to report for an error; INTERNAL for a permanent error that was not caused by an input."""
    import grpc

    if isinstance(error, StatusError):
        return error.status
    return grpc.StatusCode[next((name for kind, name in _STATUS if isinstance(error, kind)), "INTERNAL")]


def status_from_number(number: int) -> grpc.StatusCode:
    """The gRPC status with a number; UNKNOWN for a number without a status."""
    import grpc

    return next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)
