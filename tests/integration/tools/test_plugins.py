"""The plug-ins of the test runs: a limit on a unit test's processor time, and a list of reasons for skips."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tools.cost import LIMIT_S, OVERHEAD, TestCost, read_table, summary

DEAR_S = 5 * LIMIT_S  # too dear even where the machine is so busy that the limit is several times as high
TESTS = f"""
import os, time
import pytest

runs = []

def burn(seconds):
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass

@pytest.fixture(scope="module")
def shared():
    burn(0.1)

def test_dear(shared):
    burn({DEAR_S})

def test_dear_once_in_a_process(shared):
    runs.append(1)
    burn({LIMIT_S + 0.1} if len(runs) == 1 else 0.0)

@pytest.mark.slow
def test_slow():
    burn({LIMIT_S + 0.1})

def test_skipped_for_a_listed_reason():
    pytest.skip("kubectl is not installed: not here")

def test_skipped_for_another_reason():
    pytest.skip("no time today")

@pytest.mark.skip
def test_skipped_without_a_reason():
    pass

@pytest.mark.xfail
def test_expected_to_fail():
    assert False
"""
LIMITS = ("tests.tools.cost", "tests.tools.listed_skips")
UNIMPORTABLE = 'import pytest\npytest.importorskip("no_such_module_at_all")\n'


def run_tests(folder: Path, tests: str, *options: str, plugins: Sequence[str] = LIMITS) -> str:
    """Run a file of unit tests in a project of its own; returns what pytest prints."""
    path = folder / "tests" / "unit" / "test_some.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tests, encoding="utf-8")
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers = slow\naddopts = -rA -q -p no:kmock -p no:randomly --import-mode=importlib\n",
        encoding="utf-8",
    )
    (folder / "conftest.py").write_text(f"pytest_plugins = {list(plugins)}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=120, check=False
    ).stdout


@pytest.mark.slow
def test_dear_unit_tests_and_unlisted_skips_fail(tmp_path: Path) -> None:
    table = tmp_path / "costs.tsv"
    printed = run_tests(tmp_path, TESTS, f"--cost={table}")
    lines = [line.split() for line in printed.partition("test summary")[2].splitlines() if "::" in line]
    outcomes = {name.partition("::")[2]: outcome for outcome, name, *_ in lines}
    assert outcomes == {
        "test_dear": "ERROR",
        "test_dear_once_in_a_process": "PASSED",
        "test_slow": "PASSED",
        "test_skipped_for_another_reason": "FAILED",
        "test_skipped_without_a_reason": "ERROR",
        "test_expected_to_fail": "FAILED",
    }, printed
    assert "1 skipped, 2 errors" in printed
    costs = {cost.test.rpartition("::")[2]: cost for cost in read_table(table)}
    assert (costs["test_slow"].tier, costs["test_dear"].tier) == ("slow", "test")
    assert costs["test_dear"].phases_s[0] >= 0.1
    assert costs["test_dear"].phases_s[1] >= LIMIT_S
    assert costs[OVERHEAD].seconds > 0.0


def test_a_module_skipped_for_an_unlisted_reason_fails(tmp_path: Path) -> None:
    assert "1 error" in run_tests(tmp_path, UNIMPORTABLE)


@pytest.mark.slow
def test_workers_share_the_compilation_of_tests_and_report_modules_that_fail(tmp_path: Path) -> None:
    plugins = ["tests.tools.listed_skips", "tests.tools.shared_imports"]
    for number in range(4):
        (tmp_path / f"tests/unit/test_{number}.py").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"tests/unit/test_{number}.py").write_text("def test_it():\n    assert True\n", encoding="utf-8")
    (tmp_path / "tests/unit/test_broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    printed = run_tests(tmp_path, UNIMPORTABLE, "-n2", "--continue-on-collection-errors", plugins=plugins)
    assert "4 passed" in printed
    assert "No module named 'nothing_of_this_name'" in printed
    assert "skipped with a reason that is not allowed here" in printed
    assert len(list(tmp_path.glob("tests/unit/__pycache__/test_[0-9].*-pytest-*.pyc"))) == 4


def test_the_summary_adds_up_folders_and_tiers() -> None:
    costs = [
        TestCost("tests/unit/a/test_x.py::test_1", "test", 2.0, (0.5, 1.5, 0.0)),
        TestCost("tests/unit/a/test_y.py::test_2[a/b]", "slow", 3.0, (0.0, 3.0, 0.0)),
        TestCost(OVERHEAD, "", 4.0, (0.0, 0.0, 0.0)),
    ]
    lines = [" ".join(line.split()) for line in summary(costs).splitlines()]
    assert lines[0] == "the dearest of 2 tests, processor seconds"
    assert lines[1].endswith("test_2[a/b]")
    assert {"5.0 tests/unit/a", "2.0 test", "3.0 slow", "9.0 in all"} <= set(lines)
