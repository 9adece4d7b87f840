"""Files of a folder that may be from elsewhere: what stands in their place may be a pipe, a device or a socket.

Opening a pipe waits for its other end, and reading a device such as /dev/zero never ends.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path) -> BufferedReader:
    """A file, to be read. OSError for what is none."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(number, "rb")
    os.close(number)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "is a pipe or a device, not a file", str(path))


def read_regular(path: Path, most_bytes: int, *, or_pipe: bool = False) -> bytes:
    """The content of a file. OSError for what is none, or has more bytes.

    `or_pipe`: it may be anything, as the user has named it, such as /dev/stdin.
    """
    with path.open("rb") if or_pipe else open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"has more than {most_bytes} bytes", str(path))
    return content
