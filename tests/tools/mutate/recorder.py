"""A pytest plug-in of `--measure`: what is executed counts to the test that runs, in processes that it starts too."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import coverage
import pytest

TESTS = "MUTATE_TESTS"  # the variable that names the file of tests, a JSON object a line
CONTEXT = "MUTATE_CONTEXT"  # the variable that names the running test to the processes that it starts


def context_of(test: str) -> str:
    """The coverage context of a test: its name may hold any character, so its hash stands for it."""
    return sha256(test.encode()).hexdigest()[:16]


def pytest_configure(config: pytest.Config) -> None:
    """The tiers that a selection may name."""
    config.addinivalue_line("markers", "slow: selected by `make slow`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count what is executed to this test, with its fixtures."""
    measured = coverage.Coverage.current()
    if measured is None:
        raise pytest.UsageError("the process is not measured: start it by `python -m tests.tools.mutate --measure`")
    context = context_of(item.nodeid)
    measured.switch_context(context)
    os.environ[CONTEXT] = context
    start_s = time.monotonic()
    try:
        return (yield)
    finally:
        seconds = time.monotonic() - start_s
        del os.environ[CONTEXT]
        measured.switch_context("")
        entry = {"test": item.nodeid, "context": context, "seconds": seconds}
        with Path(os.environ[TESTS]).open("a", encoding="utf-8") as tests:
            tests.write(json.dumps(entry) + "\n")
