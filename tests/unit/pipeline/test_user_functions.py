"""Functions of a user's file: its classes are those of an importable module."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from tests.support.skips import NotInstalled

pytest.importorskip("torch", reason=NotInstalled.TORCH)

from jellybean.errors import JellyBeanError
from jellybean.pipeline import load_function
from jellybean.user_modules import is_installed

FILE = """\
from __future__ import annotations

import multiprocessing
from dataclasses import dataclass

@dataclass
class Config:
    width: int = 3

def config():
    return Config()

def width(config):
    return config.width

def started():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(width, [Config(4)])
"""


def test_a_dataclass_with_postponed_annotations_can_be_pickled(tmp_path):
    (tmp_path / "shapes_of_user.py").write_text(FILE, encoding="utf-8")
    made = load_function("shapes_of_user.py", "config", tmp_path)()
    assert made.width == 3
    assert pickle.loads(pickle.dumps(made)) == made


def test_other_processes_can_import_the_file(tmp_path):
    (tmp_path / "nets.py").write_text(FILE, encoding="utf-8")
    script = (
        "from pathlib import Path\n"
        "from jellybean.pipeline.user_functions import load_function\n"
        f"if __name__ == '__main__':\n    print(load_function('nets.py', 'started', Path({str(tmp_path)!r}))())\n"
    )
    (tmp_path / "main.py").write_text(script, encoding="utf-8")
    found = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, check=False)
    assert found.stdout == "[4]\n", found.stderr


def test_a_file_with_a_taken_name_leaves_the_other_module_alone(tmp_path):
    import json

    (tmp_path / "json.py").write_text("def width():\n    return 5\n", encoding="utf-8")
    assert load_function("json.py", "width", tmp_path)() == 5
    assert sys.modules["json"] is json


def test_an_error_that_is_its_own_cause(tmp_path):
    (tmp_path / "odd_cause.py").write_text("error = ValueError('odd')\nraise error from error\n", encoding="utf-8")
    with pytest.raises(JellyBeanError, match=r"odd_cause\.py cannot be imported: odd"):
        load_function("odd_cause.py", "width", tmp_path)
    assert "odd_cause" not in sys.modules


def test_projects_have_their_own_files_of_the_same_name(tmp_path):
    """What a file imports beside it, too. What a project made can be pickled when it is the current one again."""
    for number in (1, 2):
        folder = tmp_path / str(number)
        (folder / "shapes").mkdir(parents=True)
        (folder / "nets.py").write_text(
            f"{FILE}\nfrom shapes.flat import depth\nfrom sizes import width\n", encoding="utf-8"
        )
        (folder / "sizes.py").write_text(f"def width():\n    return {number}\n", encoding="utf-8")
        (folder / "shapes" / "__init__.py").touch()
        (folder / "shapes" / "flat.py").write_text(f"def depth():\n    return {10 * number}\n", encoding="utf-8")
    made = load_function("nets.py", "config", tmp_path / "1")()
    for number in (2, 1):
        assert load_function("sizes.py", "width", tmp_path / str(number))() == number
        assert load_function("nets.py", "depth", tmp_path / str(number))() == 10 * number
    assert pickle.loads(pickle.dumps(made)) == made
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "nets.py").write_text("import sizes\n", encoding="utf-8")
    with pytest.raises(JellyBeanError, match="No module named 'sizes'"):
        load_function("nets.py", "config", tmp_path / "3")
    assert not {"sizes", "shapes", "shapes.flat"} & sys.modules.keys()
    assert [folder for folder in sys.path if folder.startswith(str(tmp_path))] == [str(tmp_path / "3")]


def test_files_of_a_project_are_not_installed(tmp_path):
    (tmp_path / "sizes.py").write_text("def width():\n    return 4\n", encoding="utf-8")
    assert load_function("sizes.py", "width", tmp_path)() == 4
    assert not is_installed("sizes")
    assert is_installed("json")
    assert load_function("sizes", "width", tmp_path)() == 4
