"""A project's folder and its state, DIR/.jellybean: logs, keys, certificates, report store.

A project may be from elsewhere, with links that lead to files of its reader. No command writes
through a link: of what a project's files say, nothing decides which files outside of its folder are
written or deleted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from jellybean.errors import InputError

STATE_FOLDER = ".jellybean"
LEDGER_FILE = "ledger.db"  # in it
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO  # rights
MAX_DEPTH = 64  # of folders in each other; JellyBean makes less than ten


def shell_text(path: Path | str) -> str:
    """A folder or file as it is typed in a shell, for the commands that messages name."""
    return shlex.quote(str(path))


def state_folder(directory: Path) -> Path:
    """DIR/.jellybean, with access for its owner only: its content may be private.

    One that came with a project, which git makes open to all, is closed. InputError if it is a link, or has one in it.
    """
    folder = directory / STATE_FOLDER
    require_plain(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & _OF_OTHERS:
        with contextlib.suppress(OSError):  # it is of another user, or on a disk that is read-only
            folder.chmod(mode & ~_OF_OTHERS)
    return folder


def require_plain(folder: Path) -> None:
    """InputError if a folder that commands write is a link, or has links, pipes or devices in it.

    Looked at once by a process.
    """
    with contextlib.suppress(FileNotFoundError):
        _require_plain(folder.absolute(), folder.lstat().st_ino)


@lru_cache(maxsize=64)
def _require_plain(folder: Path, _inode: int) -> None:
    _require_plain_entry(folder, folder.lstat().st_mode)
    for path, mode in walk_tree(folder):
        _require_plain_entry(path, mode)


def _require_plain_entry(path: Path, mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise InputError(f"{path} is a link to {path.readlink()}: {_NO_LINKS}; remove it")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISSOCK(mode)):
        raise InputError(f"{path} is neither a file nor a folder: remove it")


_NO_LINKS = "JellyBean writes through no link in a project"


def walk_tree(folder: Path) -> Iterator[tuple[Path, int]]:
    """Path and mode of all in a folder; no link in it is followed.

    A tree from elsewhere may have any depth, so this neither recurses nor holds more than a path of
    open listings. InputError for more than `MAX_DEPTH` folders in each other.
    """
    levels = [iter(sorted(folder.iterdir()))] if folder.is_dir() else []
    while levels:
        path = next(levels[-1], None)
        if path is None:
            levels.pop()
            continue
        try:
            mode = path.lstat().st_mode
            inside = sorted(path.iterdir()) if stat.S_ISDIR(mode) else None
        except FileNotFoundError:  # removed meanwhile by another process
            continue
        yield path, mode
        if inside is not None:
            if len(levels) == MAX_DEPTH:
                raise InputError(f"{folder} has more than {MAX_DEPTH} folders in each other: remove them")
            levels.append(iter(inside))


def require_no_link(path: Path, root: Path | None = None, *, at_end: bool = True) -> None:
    """InputError if writing to `path` would write through a link, or outside of `root`.

    `root`: by default the file's folder. `at_end`: False if `path` itself may be a link, as it is only read.
    """
    if at_end and path.is_symlink():
        raise InputError(f"{path} is a link to {path.readlink()}: {_NO_LINKS}; put the file itself there")
    root = path.parent if root is None else root
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path.parent} leads out of {root}: {_NO_LINKS}; put a folder there")


def write_file(path: Path, content: str | bytes, root: Path | None = None) -> None:
    """Write a file of a project atomically; what was there keeps its mode.

    InputError as of `require_no_link`.
    """
    require_no_link(path, root)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # a name that no project can have prepared
    try:
        number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(number, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(number, stat.S_IMODE(path.stat().st_mode))
            file.write(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    except OSError as error:  # those of a full disk name no file, others the partial one
        error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def write_output(path: Path, content: str) -> None:
    """Write a file that the user named, in place: it may be a link or a device. An OSError names it."""
    with naming(path):
        path.write_text(content, encoding="utf-8")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file in the block's OSErrors that name none, as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = str(path) if error.filename is None else error.filename
        raise
