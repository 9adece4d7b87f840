"""Runs a command in a network namespace without a way out, under strace, and reads what it tried.

The namespace has the loopback interface alone, and a host name that nothing resolves: whoever looks it up asks a name
server. `python -m tests.support.network_namespace TRACE COMMAND...` is the part inside of the namespace.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.skips import Absent, NotInstalled

_ENDS_TOGETHER = ("--pid", "--fork", "--kill-child", "--mount-proc")  # all processes end with the first one
_HOST = "box-without-a-name"
_UP = struct.pack("16sH14x", b"lo", 0x1 | 0x40)  # struct ifreq: IFF_UP | IFF_RUNNING
_SIOCSIFFLAGS = 0x8914
_WRITES = "open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,mknod,mknodat"
_SENDS = "connect,sendto,sendmsg,sendmmsg,bind,getsockname"
_CALL = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*)$")
_INET = re.compile(
    r'sin6?_port=htons\((\d+)\), (?:sin6_flowinfo=[^,]+, )?(?:sin_addr=inet_addr\("([^"]+)"\)|'
    r'inet_pton\(AF_INET6, "([^"]+)")'
)
_UNIX = re.compile(r'sun_path="([^"]*)"')
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_TMPFILE")
_SOURCES = ("rename", "link", "symlink")  # calls whose first path is not the one that is made


@dataclass(frozen=True)
class Trace:
    """What processes tried.

    `peers`: (address, port) of the internet that they sent to or connected to. `bound`: those that they bound, or got.
    `sockets`: paths of Unix sockets that they connected to. `written`: paths that they made, or opened to write.
    """

    peers: frozenset[tuple[str, int]]
    bound: frozenset[tuple[str, int]]
    sockets: frozenset[str]
    written: frozenset[Path]

    def outside(self, *folders: Path) -> list[Path]:
        """Paths that were written and are in none of the folders."""
        roots = [folder.resolve() for folder in folders]
        return sorted(path for path in self.written if not any(path.is_relative_to(root) for root in roots))

    def strangers(self) -> list[tuple[str, int]]:
        """Peers that are none of the processes themselves."""
        ports = {port for _, port in self.bound}
        return sorted(peer for peer in self.peers if peer[1] not in ports or not _is_loopback(peer))

    def open_to_others(self) -> list[tuple[str, int]]:
        """What they bound that others than this machine could reach."""
        return sorted(place for place in self.bound if not _is_loopback(place))


def traced(command: Sequence[str], folder: Path, environment: Mapping[str, str], limit_s: float) -> Trace:
    """Run a command, which must succeed, and all that it starts, until the last of it has ended.

    Skips the test where no namespace can be made, or without strace.
    """
    trace = folder / "trace"
    inside = [sys.executable, "-m", "tests.support.network_namespace", str(trace), *command]
    done = subprocess.run(
        [*_way_in(), *inside], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return read_trace(trace.read_text(encoding="utf-8", errors="replace"))


@functools.cache
def _way_in() -> list[str]:
    """The command before one that runs in a namespace of its own."""
    if shutil.which("strace") is None:
        pytest.skip(NotInstalled.STRACE)
    for rights in ([], ["--map-root-user"]):
        unshare = ["unshare", "--net", "--uts", *_ENDS_TOGETHER, *rights]
        tried = [*unshare, "strace", "-o", os.devnull, "true"]
        if shutil.which("unshare") and not subprocess.run(tried, capture_output=True, check=False).returncode:
            return unshare
    pytest.skip(Absent.NETWORK_NAMESPACE)


def read_trace(text: str) -> Trace:
    """What the lines of strace say."""
    peers: set[tuple[str, int]] = set()
    bound: set[tuple[str, int]] = set()
    sockets: set[str] = set()
    written: set[Path] = set()
    for line in text.splitlines():
        match = _CALL.match(line)
        if match is None:
            continue
        call, arguments = match.groups()
        if call in ("bind", "getsockname"):
            bound.update(_addresses(arguments))
        elif call in ("connect", "sendto", "sendmsg", "sendmmsg"):
            peers.update(_addresses(arguments))
            sockets.update(_UNIX.findall(arguments))
        elif (path := _written(call, arguments)) is not None:
            written.add(path)
    return Trace(frozenset(peers), frozenset(bound), frozenset(sockets), frozenset(written))


def _is_loopback(place: tuple[str, int]) -> bool:
    return place[0].startswith("127.") or place[0] == "::1"


def _addresses(arguments: str) -> Iterator[tuple[str, int]]:
    for port, v4, v6 in _INET.findall(arguments):
        yield (v4 or v6).removeprefix("::ffff:"), int(port)


def _written(call: str, arguments: str) -> Path | None:
    """The path that a call makes, or opens to write; None if it does neither."""
    if call in ("open", "openat") and not _WRITING.search(arguments):
        return None
    places = _PATH.findall(arguments)
    if call.startswith(_SOURCES):
        places = places[1:]
    if not places:
        return None
    folder, name = places[0]
    return Path(os.path.normpath(Path(folder or "/") / name))


def main() -> None:
    """Bring the loopback interface up, take the host name, and become strace with the command."""
    trace, *command = sys.argv[1:]
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _UP)
    socket.sethostname(_HOST)
    calls = f"trace={_SENDS},{_WRITES}"
    os.execvp("strace", ["strace", "-f", "-qq", "-y", "--seccomp-bpf", "-e", calls, "-o", trace, *command])


if __name__ == "__main__":
    main()
