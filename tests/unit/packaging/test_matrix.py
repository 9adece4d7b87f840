"""The matrix of Python versions: its rows, the oldest packages, and its table."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.tools.matrix import Result, find_python, lower_bounds, main, project_file, python_versions, table


def test_the_oldest_row_has_the_lower_bound_of_every_extra_that_it_installs() -> None:
    project = {
        "project": {
            "dependencies": ["protobuf>=6.30,<8"],
            "optional-dependencies": {
                "all": ["jellybean-serving[plan,otel]"],
                "plan": ["jellybean-serving[all]", "psycopg[binary]>=3.2.2,<4", "fixed==1.4.4"],
                "otel": ["opentelemetry-sdk>=1.40,<2"],
                "ledger-postgres": [],
                "examples": [],
                "train": ["torch>=2.6,<3"],
            },
        }
    }
    assert lower_bounds(project) == {"protobuf": "6.30", "psycopg": "3.2.2", "opentelemetry-sdk": "1.40"}


def test_lower_bounds_of_this_project() -> None:
    bounds = lower_bounds(project_file())
    assert {"protobuf", "grpcio", "kubernetes", "aiohttp", "psycopg", "scikit-learn"} <= set(bounds)
    assert "torch" not in bounds


def test_an_interpreter_is_of_the_version_that_is_looked_for() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert version in python_versions(project_file())
    assert find_python("3.99") is None


def test_a_row_that_does_not_exist_is_refused_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["2.7"]) == 2
    assert capsys.readouterr().err.startswith("2.7: not a row: choose from 3.11, ")


def test_the_table_shows_counts_and_every_reason_of_a_skip() -> None:
    results = [
        Result("3.12", "ok", "", "protobuf 7.36.2, grpcio 1.85.3", 10, 0, 61.4, Counter({"torch is not installed": 2})),
        Result("3.14", "skipped", "Python 3.14 is not installed here"),
    ]
    assert table(results).splitlines() == [
        "row     result    passed failed skipped     s  note",
        "3.12    ok            10      0       2    61  protobuf 7.36.2, grpcio 1.85.3",
        "3.14    skipped        -      -       -     -  Python 3.14 is not installed here",
        "3.12: 2 skipped: torch is not installed",
    ]
