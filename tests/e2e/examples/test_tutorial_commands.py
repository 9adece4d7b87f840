"""Every command of the tutorial runs, section by section, as a reader types it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import jellybean
from tests.support.paths import DOCS
from tests.support.skips import NotInstalled

TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\d)\. .*\n((?:(?!^## ).*\n)*)", TUTORIAL, flags=re.MULTILINE))
STATUS = {  # of commands that are about a plan that is missing, late or other; else 0
    "jellybean plan my-digits --set sources.strip.rate=40/s": {3},
    "jellybean explain my-digits --set sources.strip.rate=60/s": {3},
    "jellybean plan my-digits --check my-digits/traces/day.csv --plot day.svg": {6},
    "jellybean diff my-digits morning": {1},
}
ON_A_BUSY_MACHINE = {0, 4, 5}  # `bench`: the plan did not keep up, or missed a target
PREPARATIONS = {  # what a sentence of the tutorial tells the reader to do before a command
    "jellybean profile my-two": ("my-two/workflows/digits/workflow.yaml", ", budget: 1.50 USD/h", ""),
}
FROM_MODELS = ["init", "validate", "profile", "plan", "up", "infer"]
TIMEOUT_S = 1200


def blocks(text: str) -> list[str]:
    """The indented blocks without the indentation: between empty lines, programs in Python whole."""
    regions = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", text, flags=re.MULTILINE)
    plain = [re.sub(r"^    ", "", region, flags=re.MULTILINE).rstrip() for region in regions]
    return [block for region in plain for block in ([region] if region.startswith("import ") else region.split("\n\n"))]


def commands(text: str) -> list[str]:
    """Commands of the blocks, without comments, and programs in Python."""
    found: list[str] = []
    for block in blocks(text):
        lines = block.splitlines()
        if block.startswith("import "):
            found.append(block)
        elif any(line.startswith("$ ") for line in lines):
            found += [line[2:] for line in lines if line.startswith("$ ")]
        elif re.match(r"(jellybean|mv|rm) ", block):
            found += lines
    return [re.sub(r"\s+# .*", "", command) for command in found]


def run(command: str, folder: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    words = [sys.executable, "-c", command] if command.startswith("import ") else ["bash", "-c", command]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    allowed = ON_A_BUSY_MACHINE if command.startswith("jellybean bench ") else STATUS.get(command, {0})
    assert done.returncode in allowed, f"{command}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr


def follow(section: str, folder: Path) -> None:
    """Run the commands of a section; what was brought up and not taken down is stopped when one of them fails."""
    try:
        for command in commands(SECTIONS[section]):
            if command in PREPARATIONS:
                name, old, new = PREPARATIONS[command]
                document = folder / name
                text = document.read_text(encoding="utf-8")
                assert old in text
                document.write_text(text.replace(old, new), encoding="utf-8")
            run(command, folder)
    finally:
        for project in {path.parent.parent for path in folder.glob("*/.jellybean/run.json")}:
            jellybean("down", str(project), status=(0, 1))


def test_the_first_section(tmp_path: Path) -> None:
    follow("1", tmp_path)
    workflow = tmp_path / "my-digits" / "workflow.yaml"
    text = workflow.read_text(encoding="utf-8")
    workflow.write_text(text.replace("accuracy:", "acuracy:"), encoding="utf-8")
    (shown,) = (block for block in blocks(SECTIONS["1"]) if block.startswith("my-digits/workflow.yaml:"))
    printed = jellybean("validate", str(workflow.parent), status=2).stderr.replace(f"{tmp_path}/", "")
    assert shown in " ".join(printed.split())


@pytest.mark.slow
@pytest.mark.timeout(1400)
@pytest.mark.parametrize("section", ["2", "3", "4", "5"], ids=["profiled", "planned", "predicted", "served"])
def test_a_project_is(section: str, tmp_path: Path) -> None:
    follow("1", tmp_path)
    if section != "2":
        # With the profiles of the example: each section is followed in a project of its own.
        run("jellybean plan my-digits", tmp_path)
    follow(section, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_one_more_variant_is_trained(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NotInstalled.TORCH)
    for section in ("1", "6"):
        follow(section, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1400)
def test_two_workflows_on_one_fleet(tmp_path: Path) -> None:
    follow("7", tmp_path)


def test_every_section_is_followed_by_a_test() -> None:
    assert list(SECTIONS) == list("12345678")
    assert all(commands(text) for text in SECTIONS.values())
    every = [command for text in SECTIONS.values() for command in commands(text)]
    assert set(STATUS) | set(PREPARATIONS) <= set(every)
    typed = [command for command in every if command.startswith("jellybean ")]
    assert len(typed) == len(re.findall(r"^    (?:\$ )?jellybean ", TUTORIAL, re.MULTILINE))
    # The commands of the last section are those of test_from_models.py, with models that it makes.
    assert [command.split()[1] for command in commands(SECTIONS["8"])] == FROM_MODELS
