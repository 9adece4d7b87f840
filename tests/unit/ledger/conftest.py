"""A PostgreSQL server for the ledger's tests, where Debian's package `postgresql` and psycopg are installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jellybean.ledger.ledger import ledger_url
from tests.support.ports import free_port
from tests.support.skips import NotInstalled
from tests.support.waiting import wait_until

OWN_USER = "postgres"  # the server refuses to run as root


def _binaries() -> Path | None:
    """The folder of the newest server that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """A function that makes a new database and returns its URL."""
    binaries = _binaries()
    if binaries is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip(NotInstalled.POSTGRESQL)
    folder = tmp_path_factory.mktemp("postgres")
    for parent in (folder, *folder.parents[:3]):
        if parent.owner() != "root" or parent == Path("/tmp"):
            continue
        parent.chmod(0o755)  # the server's user must get there
    as_user = ["runuser", "-u", OWN_USER, "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(folder, OWN_USER)
    port, data = free_port(), folder / "data"

    def run(*command: str) -> None:
        subprocess.run([*as_user, *command], check=True, capture_output=True, cwd="/", timeout=120)

    run(str(binaries / "initdb"), "-D", str(data), "--auth=trust", "-U", OWN_USER)
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    run(str(binaries / "pg_ctl"), "-D", str(data), "-l", str(folder / "log"), "-w", "-o", options, "start")

    def make() -> str:
        name = f"ledger_{uuid.uuid4().hex[:12]}"
        run(str(binaries / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", OWN_USER, name)
        return f"postgresql+psycopg://{OWN_USER}@127.0.0.1:{port}/{name}"

    yield make
    pid = int((data / "postmaster.pid").read_text(encoding="utf-8").split()[0])
    os.kill(pid, signal.SIGQUIT)  # not by pg_ctl: another pytest that begins takes its user's way to the folder
    wait_until(lambda: not (data / "postmaster.pid").exists())


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database: an SQLite file, or one of a PostgreSQL server where there is one."""
    if request.param == "sqlite":
        (tmp_path / ".jellybean").mkdir()
        return ledger_url(tmp_path)
    found: str = request.getfixturevalue("postgres")()
    return found
