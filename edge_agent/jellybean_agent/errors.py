"""The agent's errors, and their mapping to gRPC status codes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
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
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "symbolic links lead round in a circle",
    errno.EMFILE: "too many files are open (see ulimit -n)",
    errno.EADDRINUSE: "the address is taken by another process: choose another port",
    errno.ENOEXEC: "is no program that runs here",
}
_FULL = {
    errno.ENOSPC: "the disk is full: make room there",
    errno.EDQUOT: "this user's disk quota is used up: make room there",
}


def full_disk_text(file: str | os.PathLike[str]) -> str:
    """That a file's file system is full: `the file system /data is full (4,096 bytes left): make room there`."""
    place = Path(os.fsdecode(file)).absolute()
    while not os.access(place, os.F_OK):
        place = place.parent
    mount = place
    while not mount.is_mount():
        mount = mount.parent
    usage = os.statvfs(place)
    left = f"{usage.f_bavail * usage.f_frsize:,} bytes left"
    left += ", but no file more can be made" if usage.f_files and not usage.f_favail else ""
    return f"the file system {mount} is full ({left}): make room there"


def describe_error(error: BaseException, *, name: bool = False, file: str | os.PathLike[str] | None = None) -> str:
    """One line for a person about an exception of a library or the operating system; `name`: include the file name.

    An OSError is described without its errno. `file`: what was written, for errors that name no file themselves.
    """
    if not isinstance(error, OSError):
        return next(iter(str(error).splitlines()), "") or type(error).__name__
    if error.errno == errno.ENOENT and error.filename is None and "temporary" in (error.strerror or ""):  # tempfile's
        return "there is no folder for temporary files: set TMPDIR to one that this user may write"
    reason = _FILE_WORDS.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
    named = error.filename
    if error.errno in _FULL:  # of a copy, what it is copied to
        named = error.filename2 or named or file
        named = None if isinstance(named, int) else named  # a number of an open file
        reason = _FULL[error.errno] if named is None or error.errno == errno.EDQUOT else full_disk_text(named)
    return f"{named}: {reason}" if name and named is not None else reason


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
