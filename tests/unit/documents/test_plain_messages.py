"""Errors that pydantic finds are in our words alone, without its prefix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jellybean.documents.layout import profile_command
from jellybean.documents.training.plan import read_stage_plan
from jellybean.errors import DocumentError
from jellybean.operator.resource import operator_spec


@pytest.mark.parametrize(
    "stages",
    [
        [],
        [{"layers": ["a"], "replicas": 1, "devices": [7]}],
        [{"layers": ["a"], "replicas": 1, "devices": [0]}, {"layers": ["a"], "replicas": 1, "devices": [1]}],
    ],
)
def test_a_plan_of_stages(tmp_path: Path, stages: list[dict[str, object]]) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"stages": stages}), encoding="utf-8")
    with pytest.raises(DocumentError) as error:
        read_stage_plan(tmp_path / "plan.json")
    assert "is no plan: " in str(error.value)
    assert "Value error" not in str(error.value)


def test_a_resource() -> None:
    with pytest.raises(DocumentError) as error:
        operator_spec({"spec": {"replan": {"horizon": "soon"}, "interval": -1}})
    assert "Value error" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("p/workflows/a/profiles.yaml", "jellybean profile p"),
        ("p/workflows/b/workflow.yaml", "jellybean profile p/workflows/b"),
        ("q/profiles.yaml", "jellybean profile q"),
        ("workflows/a/profiles.yaml", "jellybean profile ."),
    ],
)
def test_the_command_that_profiles_one_of_several_is_that_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, command: str
) -> None:
    """`a` has its fleet in common with others; `b` has its own, and is a project by itself."""
    for name in ("p/workflows/a", "p/workflows/b", "q"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "p/infrastructure.yaml").write_text("", encoding="utf-8")
    (tmp_path / "p/workflows/b/infrastructure.yaml").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "p" if file.startswith("workflows") else tmp_path)
    assert profile_command(file) == command
