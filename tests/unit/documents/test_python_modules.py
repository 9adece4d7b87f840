"""Python functions are found beside workflow.yaml, each project's its own; installed modules come first."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from jellybean.documents.python_modules import function_source
from jellybean.user_modules import enter_project, open_project_folder
from jellybean_agent import ModelError, step_folders


def test_each_project_has_its_own_module_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two", "none"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        (tmp_path / name / "shared_steps.py").write_text(f"# of {name}\n", encoding="utf-8")
    for name in ("one", "two", "one"):
        assert function_source(tmp_path / name, "shared_steps:crop").text == f"# of {name}\n".encode()
    with pytest.raises(ModelError, match="there is no module shared_steps"):
        function_source(tmp_path / "none", "shared_steps:crop")


def test_an_installed_module_comes_first(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").touch()
    (tmp_path / "jellybean_agent").mkdir()
    (tmp_path / "jellybean_agent" / "steps.py").write_text("# not the agent's\n", encoding="utf-8")
    assert function_source(tmp_path, "json:loads").path != tmp_path / "json" / "__init__.py"
    assert b"not the agent's" not in function_source(tmp_path, "jellybean_agent.steps:argmax").text


def test_looking_at_a_project_does_not_make_its_files_importable(tmp_path: Path) -> None:
    """A file with the name of a library that is not installed must not run because a project names a function."""
    (tmp_path / "steps_of_mine.py").write_text("# a step\n", encoding="utf-8")
    (tmp_path / "library_not_installed.py").write_text("raise SystemExit('ran unasked')\n", encoding="utf-8")
    before = list(sys.path)
    assert function_source(tmp_path, "steps_of_mine:crop").path.parent == tmp_path
    assert sys.path == before
    folder = str(tmp_path)
    assert step_folders([], [folder]) == step_folders(["json:loads", "nowhere:f"], [folder]) == []
    assert step_folders(["nowhere:f", "steps_of_mine:crop"], [folder, folder + "-other"]) == [folder]


def test_the_folder_of_a_project_is_on_the_path_while_it_is_the_current_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "beside_steps.py").write_text(f"NAME = {name!r}\n", encoding="utf-8")
    for name in ("a", "b", "a"):
        open_project_folder(tmp_path / name)
        assert name == importlib.import_module("beside_steps").NAME
        assert [folder for folder in sys.path if folder.startswith(str(tmp_path))] == [str(tmp_path / name)]
    enter_project(tmp_path)
    assert str(tmp_path / "a") not in sys.path
