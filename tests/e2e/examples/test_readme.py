"""What the README shows is what its commands print: the plan to the figure, the demo in form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command_line import jellybean, jellybean_process
from tests.support.golden import DEMO, LEFT_OUT, PLAN, excerpt, printed


def words(lines: Sequence[str]) -> list[str]:
    """However the terminal wraps the lines, and however long the solver takes."""
    return re.sub(r"optimal in \S+ s\b", "optimal", " ".join(" ".join(lines).split())).split()


def test_the_plan_is_what_its_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answers = [jellybean(*arguments) for arguments in PLAN.commands]
    assert words(printed(answers[-1].stdout)) == words(PLAN.path.read_text(encoding="utf-8").splitlines())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demo_prints_the_lines_that_the_readme_shows_and_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In form: the figures are this machine's, and five seconds of load are too few for a verdict."""
    monkeypatch.setenv("COLUMNS", str(DEMO.columns))
    monkeypatch.chdir(tmp_path)
    (arguments,) = DEMO.commands
    lines = printed(jellybean_process(*arguments, "--duration", "5", timeout=1500).stdout)
    assert excerpt(DEMO, lines)[0] == excerpt(DEMO, DEMO.path.read_text(encoding="utf-8").splitlines())[0]
    assert len([line for line in excerpt(DEMO, lines) if line != LEFT_OUT]) == len(DEMO.patterns)
