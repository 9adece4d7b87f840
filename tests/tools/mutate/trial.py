"""Runs the tests that cover a fault, in a copied tree that holds it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.tools.mutate.covering import CoveringTest
from tests.tools.mutate.draw import Drawn
from tests.tools.mutate.tree import Tree

_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_FIRST = 40  # tests that run before the others: most faults are caught by the quickest
_NO_TEST, _PASSED = 5, 0  # exit statuses of pytest


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a fault. `by`: the test that caught it, or what else did; `tests`: how many cover the line."""

    outcome: str  # caught, survived, uncovered
    by: str | None
    tests: int


@dataclass(slots=True)
class Trials:
    """Tries faults one after another in one tree. `timeout_s`: of a fault's tests, `test_timeout_s`: of one test."""

    tree: Tree
    timeout_s: float
    test_timeout_s: float
    _sound: set[str] = field(default_factory=set)  # tests that failed with a fault and pass without any
    _unsound: set[str] = field(default_factory=set)  # tests that fail without a fault

    def existing(self, tests: Iterable[CoveringTest]) -> frozenset[str]:
        """Those of the tests that pytest still finds, without a fault. SystemExit if it cannot collect their files."""
        files = sorted({test.name.split("::")[0] for test in tests})
        command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *files]
        collected = subprocess.run(
            command, cwd=self.tree.root, env=self.tree.environment(), capture_output=True, text=True, check=False
        )
        if files and collected.returncode != 0:  # a test that cannot be collected would seem to cover nothing
            raise SystemExit(f"the tests cannot be collected without a fault:\n{collected.stdout[-3000:]}")
        return frozenset(line for line in collected.stdout.splitlines() if "::" in line) if files else frozenset()

    def run(self, drawn: Drawn, covering: Sequence[CoveringTest]) -> Verdict:
        """Run the covering tests until one fails. One that fails without the fault too says nothing and is left out."""
        remaining = [test.name for test in covering if test.name not in self._unsound]
        if not remaining:
            return Verdict("uncovered", None, 0)
        count = len(remaining)
        for start, end in ((0, _FIRST), (_FIRST, count)):
            part = remaining[start:end]
            while part:
                with self.tree.with_text(drawn.file, drawn.fault.applied(drawn.source)):
                    caught_by = self._first_failure(part)
                if caught_by is None:
                    break
                if self._is_sound(caught_by):
                    return Verdict("caught", caught_by, count)
                part = [test for test in part if test != caught_by]
        return Verdict("survived", None, count)

    def _is_sound(self, test: str) -> bool:
        if "::" not in test or test in self._sound:  # an import that fails, a crash, a time-out of all
            return True
        if self._first_failure([test]) is None:
            self._sound.add(test)
            return True
        self._unsound.add(test)
        return False

    def _first_failure(self, tests: Sequence[str]) -> str | None:
        """The first of the tests that fails, or in words how the run ended otherwise; None if all pass."""
        arguments = self.tree.root.parent / "tests.txt"
        arguments.write_text("\n".join(tests), encoding="utf-8")
        limits = ["-o", f"timeout={self.test_timeout_s:g}", "-o", "faulthandler_timeout=0"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-rfE",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            *limits,
            f"@{arguments}",
        ]
        log = self.tree.root.parent / "output.txt"
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                command,
                cwd=self.tree.root,
                env=self.tree.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status = _waited(process, self.timeout_s)
        self.tree.end_processes()
        if status is None:
            return f"no end within {self.timeout_s:g} s"
        if status in (_PASSED, _NO_TEST):
            return None
        text = log.read_text(encoding="utf-8", errors="replace")
        match = _FAILED.search(text)
        return match[1] if match else f"exit status {status}: {text.strip().splitlines()[-1] if text.strip() else ''}"


def _waited(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The exit status; None if the time was not enough. Processes that it left behind end with it."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end_group(process.pid)
        process.wait()


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
