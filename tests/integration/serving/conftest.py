"""Runs with real processes; every one is taken down, whatever a test does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jellybean.serving import LaunchSettings, NotRunningError, Running
from jellybean.serving.local import launcher
from jellybean.serving.local.running import down
from jellybean.serving.local.settings import Progress, no_progress
from jellybean_solver.model.plan_document import Document

Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """`up` whose runs end with the test; the gateway takes clients on a free loopback port, as clients' tests need."""
    folders: list[Path] = []

    def up(
        directory: Path, document: Document, *, detach: bool = False, progress: Progress = no_progress, **settings: Any
    ) -> Running:
        folders.append(directory)
        found = LaunchSettings(**{"port": 0, "insecure": True} | settings)
        return launcher.up(directory, document, found, detach=detach, progress=progress)

    yield up
    for folder in folders:
        with contextlib.suppress(NotRunningError):
            down(folder, timeout_s=1.0)
