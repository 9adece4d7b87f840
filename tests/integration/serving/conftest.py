"""Runs with real processes; every one is taken down, whatever a test does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jellybean.serving.errors import NotRunningError
from jellybean.serving.local import launcher
from jellybean_solver.model.plan_document import Document

Start = Callable[..., launcher.Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """`up` whose runs end with the test; the gateway takes clients on a free loopback port, as clients' tests need."""
    folders: list[Path] = []

    def up(directory: Path, document: Document, **more: Any) -> launcher.Running:
        folders.append(directory)
        return launcher.up(directory, document, **{"port": 0, "insecure": True} | more)

    yield up
    for folder in folders:
        with contextlib.suppress(NotRunningError):
            launcher.down(folder, timeout_s=1.0)
