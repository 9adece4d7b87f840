"""`validate` reads kubernetes.yaml with the other documents, and reports the problems of all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from jellybean.cli import run
from tests.support.paths import EXAMPLES

SETTINGS = """\
kind: Kubernetes
images: {agent: "a:1", gateway: "g:1"}
models: {url: "https://models.example:PORT/x"}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / "digits", tmp_path / "digits")
    return tmp_path / "digits"


def validated(project: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    status = run(["validate", str(project), *options, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_problems_of_kubernetes_yaml_are_reported_with_those_of_the_others(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / "kubernetes.yaml"
    path.write_text(SETTINGS.replace("PORT", "443"), encoding="utf-8")
    assert validated(project, capsys)[0] == 0
    path.write_text(SETTINGS.replace("PORT", "99999") + "pods: {cpu_limit: -1}\n", encoding="utf-8")
    status, found = validated(project, capsys)
    assert (status, found["valid"]) == (2, False)
    assert [problem["path"] for problem in found["problems"]] == ["models.url", "pods.cpu_limit"]
    status, found = validated(project, capsys, "--set", "slo.accuracy=101")
    assert status == 2
    assert [problem["path"] for problem in found["problems"]] == ["slo.accuracy", "models.url", "pods.cpu_limit"]
