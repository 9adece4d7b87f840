"""What the tutorial shows is what the commands print."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.command_line import jellybean
from tests.support.paths import DOCS

TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = [block for block in TUTORIAL.split("\n\n") if block.startswith("    ")]


def shown(start: str) -> list[str]:
    """The words of each line of the block that begins so."""
    (block,) = (block for block in BLOCKS if block.lstrip().startswith(start))
    return [line for line in map(_plain, block.splitlines()) if line and line != "..."]


def missing(start: str, answer: str) -> list[str]:
    """Lines of the block that begins so which are not in what a command printed."""
    return [line for line in shown(start) if line not in _plain(answer)]


def _plain(text: str) -> str:
    """Without times, dates and folders; however it was wrapped."""
    words = " ".join(text.split())
    return re.sub(r" in [0-9.]+ s\b|\S*/(?=plan.json)|plan of \S+ \S+,", "", words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tutorial")
    for name in ("my-digits", "morning"):
        jellybean("init", "digits", str(folder / name))
    return folder


def test_the_tutorials_plan_is_that_of_the_example(folder: Path) -> None:
    start = "digits: 0.61 USD/h (compute 0.38, network 0.23), accuracy 90.00 >= 89, proven optimal in"
    answer = jellybean("plan", str(folder / "my-digits")).stdout
    assert missing(start, answer) == [], answer


@pytest.mark.slow
def test_the_tutorials_other_plans_are_those_of_the_example(folder: Path) -> None:
    jellybean("plan", str(folder / "my-digits"))
    answers = {
        "digits: no plan meets the targets\n      - budget": jellybean(
            "plan", str(folder / "my-digits"), "--set", "sources.strip.rate=40/s", status=3
        ).stderr,
    }
    fallen = ("--from", str(folder / "my-digits"), "--set", "sources.strip.rate=9.5/s")
    answers["digits: keep the running plan"] = jellybean("plan", str(folder / "my-digits"), *fallen).stdout
    jellybean("plan", str(folder / "morning"), "--set", "sources.strip.rate=18/s")
    answers["my-digits -> morning"] = jellybean(
        "diff", str(folder / "my-digits"), str(folder / "morning"), status=1
    ).stdout.replace(f"{folder}/", "")
    for start, answer in answers.items():
        assert missing(start, answer) == [], answer


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("start", "command", "status"),
    [
        ("digits: misses a target at", ("plan", "--check", "{folder}/my-digits/traces/day.csv"), 6),
        ("digits: 0.61 USD/h (compute 0.38, network 0.23), accuracy 90.00 >= 89, proven optimal\n",
         ("explain", "--why-not", "hub", "--why-not", "strokes=linear"), 0),
        ("digits: no plan meets the targets\n    capacity", ("explain", "--set", "sources.strip.rate=60/s"), 3),
    ],
    ids=["a trace", "an explanation", "a conflict"],
)  # fmt: skip
def test_longer_answers_of_the_tutorial(folder: Path, start: str, command: tuple[str, ...], status: int) -> None:
    verb, *options = (part.format(folder=folder) for part in command)
    answer = jellybean(verb, str(folder / "my-digits"), *options, status=status)
    printed = (answer.stdout + answer.stderr).replace(f"{folder}/", "")
    assert missing(start, printed) == [], printed


@pytest.mark.nightly
def test_the_tutorial_states_the_simulated_highest_rate(folder: Path) -> None:
    record = json.loads(jellybean("simulate", str(folder / "my-digits"), "--json").stdout)
    assert f"highest sustained rate ({record['highest_rate_per_s']:.1f}/s here" in " ".join(TUTORIAL.split())
