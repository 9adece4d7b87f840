"""The workflow files of hosted CI: valid, of few rights, and of make targets that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.tools.matrix import OLDEST, project_file, python_versions

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("nightly", "release", "slow", "test")


def workflow(name: str) -> dict[str, Any]:
    text = (ROOT / ".github/workflows" / f"{name}.yml").read_text(encoding="utf-8")
    document = YAML(typ="safe").load(text)  # YAML 1.2: `on` is a string
    assert isinstance(document, dict)
    return document


def test_there_is_a_workflow_for_each_tier_and_for_a_release() -> None:
    assert sorted(path.stem for path in (ROOT / ".github/workflows").iterdir()) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_calls_make_targets_that_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.MULTILINE))
    steps = [step for job in workflow(name)["jobs"].values() for step in job["steps"]]
    called = [target for step in steps for target in re.findall(r"\bmake ([a-z][\w-]*)", step.get("run", ""))]
    assert set(called) <= targets, f"{name}.yml calls {sorted(set(called) - targets)}, which the Makefile lacks"
    assert called


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_has_few_rights_and_a_limit_of_time(name: str) -> None:
    document = workflow(name)
    assert document["permissions"] == {"contents": "read"}
    assert "on" in document
    for title, job in document["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 350, title
        assert "secrets." not in str(job), title


def test_only_the_job_that_publishes_may_ask_for_an_identity() -> None:
    jobs = workflow("release")["jobs"]
    assert {name for name, job in jobs.items() if "permissions" in job} == {"publish"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"
    assert not any("run" in step for step in jobs["publish"]["steps"])  # it runs nothing of the repository


def test_the_matrix_of_hosted_ci_has_every_row() -> None:
    rows = workflow("test")["jobs"]["matrix"]["strategy"]["matrix"]["row"]
    assert rows == [*python_versions(project_file()), OLDEST]
