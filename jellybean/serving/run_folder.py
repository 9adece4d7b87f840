"""The folder of a run: its sockets, and the files from which its processes start again.

It lies where systems keep the state of programs, not among temporary files, which are cleaned away
while a run is up. A project's own folder is the second choice: it may be on a file system without
sockets, and its path too long for one. The folder's name begins with a digest of the project's path,
by which a folder that a dead run has left behind is removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jellybean.folders import STATE_FOLDER
from jellybean.serving.errors import LaunchError
from jellybean_agent import describe_error

MAX_SOCKET_PATH_BYTES = 100  # Linux has room for 107, macOS for 103
_LONGEST_SOCKET = "/99/9999.sock"  # of the 99th plan's 10,000th worker
_NAME, TEMPORARY_PREFIX = "jellybean", "jellybean-"
PROJECT_FILE = "project"  # in a run's folder: the project's
_DIGEST_LETTERS = 8  # of the project's path: enough to tell the projects of a user apart
_LOOKS_S = (0.001, 0.01, 0.05)  # pauses between looks at a lock: others look for microseconds
_MACHINE_ID = Path("/etc/machine-id")


def make_run_folder(directory: Path) -> Path:
    """A new private folder (mode 0700) for a run of the project, with a path that sockets can have.

    LaunchError if there is no place for it: names each that was tried, and why it cannot be used.
    """
    reasons: list[str] = []
    for base, prefix in _places(directory):
        try:
            folder = _make(base, f"{prefix}{_digest(directory)}-")
        except OSError as error:
            reasons.append(f"{base} ({describe_error(error, file=base)})")
            continue
        try:
            _require_sockets(folder)
            claim_run_folder(directory, folder)
        except (OSError, ValueError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            reasons.append(f"{base} ({describe_error(error, file=base)})")
            continue
        return folder
    raise LaunchError(
        "no folder for the sockets: "
        + "; ".join(reasons)
        + "; set XDG_STATE_HOME to a private folder with a short path"
    )


def remove_left_behind(directory: Path) -> None:
    """Remove the folders of earlier runs of the project that ended without doing so, none of which lives."""
    for base, prefix in _places(directory):
        with contextlib.suppress(OSError):
            for folder in base.glob(f"{prefix}{_digest(directory)}-*"):
                if is_private(folder) and not is_held(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def is_named_for(folder: Path, directory: Path) -> bool:
    """True if the name of a run's folder says that it was made for the project."""
    return folder.name.removeprefix(TEMPORARY_PREFIX).startswith(f"{_digest(directory)}-")


def hold(folder: Path) -> int:
    """Lock a run's folder as long as the descriptor that is returned is open, and not longer than this process lives.

    Unlike the ids of processes, the lock can be seen from other containers.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def is_held(folder: Path) -> bool:
    """True if a process of the run lives that holds its folder, here or in another container.

    Another command that looks at the same time locks the folder too, for a moment: that is not taken for the run.
    """
    for pause_s in _LOOKS_S:
        if not _is_locked(folder):
            return False
        time.sleep(pause_s)
    return _is_locked(folder)


def _is_locked(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def claim_run_folder(directory: Path, folder: Path) -> None:
    """Note in a run's new folder that it is this project's."""
    (folder / PROJECT_FILE).write_text(str(directory.resolve()), "utf-8", "surrogateescape")


def project_of(folder: Path) -> str:
    """The project that a run's folder was made for; empty if it says none, or others could have written it."""
    if not is_private(folder):
        return ""
    try:
        return (folder / PROJECT_FILE).read_text("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return ""


def _places(directory: Path) -> Iterator[tuple[Path, str]]:
    """(folder, prefix of a run's folder in it) of each place for runs' folders, best first."""
    home = os.environ.get("HOME", "")
    given = (
        os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0],  # set by systemd: it ends with the service
        f"{state}/{_NAME}" if (state := os.environ.get("XDG_STATE_HOME", "")) else "",
        f"{home}/.local/state/{_NAME}" if home else "",
    )
    for text in given:
        if Path(text).is_absolute():  # the XDG specification has others ignored
            yield Path(text), ""
    yield directory / STATE_FOLDER / "run", ""
    if Path(runtime := os.environ.get("XDG_RUNTIME_DIR", "")).is_absolute():  # not before: it ends with the session
        yield Path(runtime) / _NAME, ""
    with contextlib.suppress(FileNotFoundError):  # there is no folder for temporary files
        yield Path(tempfile.gettempdir()), TEMPORARY_PREFIX
    yield Path("/tmp"), TEMPORARY_PREFIX


def _make(base: Path, prefix: str) -> Path:
    if base.parent != base and not base.exists():
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=base))


def _require_sockets(folder: Path) -> None:
    """OSError or ValueError if processes could not listen in the folder."""
    path = f"{folder}{_LONGEST_SOCKET}".encode()  # UnicodeError for a path that no message can name
    if len(path) > MAX_SOCKET_PATH_BYTES:
        most = MAX_SOCKET_PATH_BYTES - len(_LONGEST_SOCKET)
        raise ValueError(f"a path of {len(path) - len(_LONGEST_SOCKET)} bytes, of at most {most}")
    trial = folder / "trial.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(trial))
    trial.unlink()


def is_private(folder: Path, forbidden: int = stat.S_IRWXG | stat.S_IRWXO) -> bool:
    """True for a folder, no link, of this user in which others have none of the `forbidden` rights: that may enter."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & forbidden


def _digest(directory: Path) -> str:
    """Of the project's path and the machine: folders of users may be of several machines."""
    machine = b""
    with contextlib.suppress(OSError):
        machine = _MACHINE_ID.read_bytes()
    return hashlib.sha256(machine + os.fsencode(directory.resolve())).hexdigest()[:_DIGEST_LETTERS]
