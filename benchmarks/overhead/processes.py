"""Servers as processes, and the certificates of mutual TLS between them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from benchmarks.overhead.load import ClientTls, Connect, LoadError
from jellybean.serving.enrolment.authority import open_authority
from jellybean_agent import CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE, Identity, Role

_START_S = 120.0


class UnavailableError(Exception):
    """A server that is not available here, and why."""


@contextlib.contextmanager
def certificates(servers: Sequence[Identity]) -> Iterator[tuple[Mapping[Identity, Path], Path]]:
    """Folders with the certificates of servers of one plan, and that of a client's."""
    with tempfile.TemporaryDirectory(prefix="jellybean-certs-") as name:
        authority = open_authority(Path(name) / "ca")
        folders = {server: Path(name) / server.role.value / (server.name or "gateway") for server in servers}
        for server, folder in folders.items():
            authority.equip(folder, server)
        client = Path(name) / "client"
        authority.equip(client, Identity(servers[0].workflow, Role.CLIENT, "load"))
        yield folders, client


def client_tls(folder: Path, server: Identity) -> ClientTls:
    """TLS of a client with the certificate in a folder."""
    context = client_context(folder)
    context.set_alpn_protocols(["h2"])
    return ClientTls(context, server.tls_name)


def client_context(folder: Path) -> ssl.SSLContext:
    """The certificate in a folder, and the authority that servers must have."""
    context = ssl.create_default_context(cafile=str(folder / CA_FILE))
    context.load_cert_chain(folder / CERTIFICATE_FILE, folder / PRIVATE_KEY_FILE)
    return context


@contextlib.contextmanager
def started(command: list[str], connect: Connect) -> Iterator[None]:
    """Run a server, from its first correct answer."""
    with tempfile.TemporaryFile() as log, process(command, log) as child:
        _wait_until_serving(child, connect, log)
        yield


@contextlib.contextmanager
def process(command: list[str], log: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process; its whole process group is killed at the end. `log`: has what it prints; None drops it."""
    output = subprocess.DEVNULL if log is None else log
    child = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(20.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _wait_until_serving(child: subprocess.Popen[bytes], connect: Connect, log: IO[bytes]) -> None:
    until = time.monotonic() + _START_S
    why: Exception | None = None
    while time.monotonic() < until:
        if child.poll() is not None:
            break
        try:
            connection = connect()
            connection.socket.settimeout(10.0)
            connection.start()
            while not connection.receive():
                connection.flush()
            connection.socket.close()
        except (OSError, LoadError) as error:
            why = error
            time.sleep(0.2)
        else:
            return
    log.seek(0)
    told = log.read()[-600:].decode(errors="replace")
    raise UnavailableError(f"it does not serve ({why}): {told}")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
