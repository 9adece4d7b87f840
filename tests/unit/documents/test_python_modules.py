"""Python functions are found beside workflow.yaml, each project's its own; installed modules come first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jellybean.documents.python_modules import function_source
from jellybean_agent import ModelError


def test_each_project_has_its_own_module_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two", "none"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        (tmp_path / name / "shared_steps.py").write_text(f"# of {name}\n")
    for name in ("one", "two", "one"):
        assert function_source(tmp_path / name, "shared_steps:crop").text == f"# of {name}\n".encode()
    with pytest.raises(ModelError, match="there is no module shared_steps"):
        function_source(tmp_path / "none", "shared_steps:crop")


def test_an_installed_module_comes_first(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").touch()
    (tmp_path / "jellybean_agent").mkdir()
    (tmp_path / "jellybean_agent" / "steps.py").write_text("# not the agent's\n")
    assert function_source(tmp_path, "json:loads").path != tmp_path / "json" / "__init__.py"
    assert b"not the agent's" not in function_source(tmp_path, "jellybean_agent.steps:argmax").text


def test_a_folder_that_is_on_the_path_already_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "a")
    function_source(tmp_path / "a", "json:loads")
    function_source(tmp_path, "json:loads")
    assert sys.path[0] == str(tmp_path / "a")
