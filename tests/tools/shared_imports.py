"""Has the workers of a parallel run compile each test module once, not once a worker. A plug-in of pytest.

Every worker collects all tests. In a fresh clone each would rewrite and compile all modules, which takes
half of its collection. So each imports its share first, and later finds the others' bytecode on disk.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import this worker's share of the modules to collect. Collection reports the errors of those that fail."""
    worker: dict[str, object] | None = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    number, count = int(str(worker["workerid"]).removeprefix("gw")), int(str(worker["workercount"]))
    for path in sorted(_modules(session))[number::count]:
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))


def _modules(session: pytest.Session) -> Iterator[Path]:
    """Modules below the folders that are collected, of which the tier may select a test."""
    for argument in session.config.args:
        folder = session.config.rootpath / argument.partition("::")[0]
        for path in folder.rglob("test_*.py"):
            if not session.config.hook.pytest_ignore_collect(collection_path=path, config=session.config):
                yield path
