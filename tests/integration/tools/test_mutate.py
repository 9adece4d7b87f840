"""`python -m tests.tools.mutate` in a repository of its own: it measures, tries every line and says what survived."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

PRODUCT = """\
def sign(x):
    if x < 0:
        return -1
    return 1


def never(x):
    return x + 1
"""
TESTS = """\
import subprocess, sys
from jellybean.sums import sign


def test_sign_in_a_process():
    command = [sys.executable, "-c", "from jellybean.sums import sign; print(sign(-4))"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "-1\\n"


def test_nothing():
    assert sign(4)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "tests/tools/mutate", tmp_path / "tests/tools/mutate", ignore=lambda *_: ["__pycache__"])
    (tmp_path / "jellybean").mkdir()
    (tmp_path / "jellybean/__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "jellybean/sums.py").write_text(PRODUCT, encoding="utf-8")
    (tmp_path / "tests/test_sums.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = '-q --import-mode=importlib'\n", encoding="utf-8"
    )
    (tmp_path / ".gitignore").write_text("__pycache__/\n.coverage-tests/\n", encoding="utf-8")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def mutate(repository: Path, *options: str) -> str:
    command = [sys.executable, "-m", "tests.tools.mutate", *options]
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # none is needed, and all of them take seconds
    ended = subprocess.run(command, cwd=repository, env=variables, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_faults_that_a_test_sees_are_caught(repository: Path) -> None:
    assert "2 tests measured" in mutate(repository, "--measure", "--tests", "tests/test_sums.py", "--select", "")
    document: dict[str, Any] = json.loads(mutate(repository, "--room", "all", "--count", "2", "--seed", "10", "--json"))
    by_line = {fault["line"]: (fault["outcome"], fault["by"], fault["tests"]) for fault in document["faults"]}
    in_a_process = "tests/test_sums.py::test_sign_in_a_process"
    assert by_line[3] == ("caught", in_a_process, 1)  # only a process of the test executes it
    assert by_line[8][0] == "uncovered"
    assert (repository / "jellybean/sums.py").read_text(encoding="utf-8") == PRODUCT
