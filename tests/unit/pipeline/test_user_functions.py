"""Functions of a user's file: its classes are those of an importable module."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="functions of torch modules: pip install torch")

from jellybean.errors import JellyBeanError
from jellybean.pipeline.user_functions import load_function

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
    (tmp_path / "shapes_of_user.py").write_text(FILE)
    made = load_function("shapes_of_user.py", "config", tmp_path)()
    assert made.width == 3
    assert pickle.loads(pickle.dumps(made)) == made


def test_other_processes_can_import_the_file(tmp_path):
    (tmp_path / "nets.py").write_text(FILE)
    script = (
        "from pathlib import Path\n"
        "from jellybean.pipeline.user_functions import load_function\n"
        f"if __name__ == '__main__':\n    print(load_function('nets.py', 'started', Path({str(tmp_path)!r}))())\n"
    )
    (tmp_path / "main.py").write_text(script)
    found = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, check=False)
    assert found.stdout == "[4]\n", found.stderr


def test_a_file_with_a_taken_name_leaves_the_other_module_alone(tmp_path):
    import json

    (tmp_path / "json.py").write_text("def width():\n    return 5\n")
    assert load_function("json.py", "width", tmp_path)() == 5
    assert sys.modules["json"] is json


def test_an_error_that_is_its_own_cause(tmp_path):
    (tmp_path / "odd_cause.py").write_text("error = ValueError('odd')\nraise error from error\n")
    with pytest.raises(JellyBeanError, match=r"odd_cause\.py cannot be imported: odd"):
        load_function("odd_cause.py", "width", tmp_path)
    assert "odd_cause" not in sys.modules
