"""A PostgreSQL server for the ledger's tests, where Debian's package `postgresql` and psycopg are installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from jellybean.ledger import ledger_url
from tests.support.ports import free_port
from tests.support.skips import NotInstalled

OWN_USER = "postgres"  # the server refuses to run as root


def _binaries() -> Path | None:
    """The folder of the newest server that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """A function that makes a new database of this run's own server and returns its URL.

    The server's folder is not one of pytest's: every run that begins on this machine shuts those to other users, as
    the server's is one.
    """
    binaries = _binaries()
    if binaries is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip(NotInstalled.POSTGRESQL)
    folder = Path(tempfile.mkdtemp(prefix="jellybean-postgres-", dir="/tmp"))
    as_user = ["runuser", "-u", OWN_USER, "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(folder, OWN_USER)
    port, data = free_port(), folder / "data"

    def run(*command: str) -> None:
        done = subprocess.run([*as_user, *command], capture_output=True, text=True, cwd="/", timeout=120, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"

    try:
        run(str(binaries / "initdb"), "-D", str(data), "--auth=trust", "--no-sync", "-U", OWN_USER)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        run(str(binaries / "pg_ctl"), "-D", str(data), "-l", str(folder / "log"), "-w", "-o", options, "start")
        yield partial(_new_database, port)
        run(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)


def _new_database(port: int) -> str:
    import psycopg.sql

    name = f"ledger_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(host="127.0.0.1", port=port, user=OWN_USER, dbname="postgres", autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return f"postgresql+psycopg://{OWN_USER}@127.0.0.1:{port}/{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database: an SQLite file, or one of a PostgreSQL server where there is one."""
    if request.param == "sqlite":
        (tmp_path / ".jellybean").mkdir()
        return ledger_url(tmp_path)
    found: str = request.getfixturevalue("postgres")()
    return found
