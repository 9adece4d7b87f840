"""`jellybean init`: every example is in the wheel, and that of training is a document that can be read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from jellybean.cli import run
from jellybean.cli.init import Example
from jellybean.documents import load_training

ROOT = Path(__file__).resolve().parents[3]


def test_every_example_is_in_the_wheel_and_the_checkout() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    folders = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()}
    assert included == {f"examples/{name}": f"jellybean/examples/{name}" for name in folders}
    assert folders >= set(Example)


def test_the_example_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my model"
    assert run(["init", "pipeline", str(folder)]) == 0
    assert f"  jellybean train '{folder}' " in capsys.readouterr().out
    assert load_training(folder).epochs == 12
