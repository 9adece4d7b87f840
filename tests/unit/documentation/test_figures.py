"""Figures that were measured have the command that gives them, or a link to a table that has one.

What counts as measured is decided by words: a sentence with a figure and with one of `MEASURED`. Settings, limits and
units of the program are figures too, and need no command.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest

import benchmarks.__main__  # noqa: F401  (registers the benchmarks)
from benchmarks.harness.files import load_all
from benchmarks.harness.registry import BENCHMARKS
from benchmarks.harness.result import Record
from tests.support.pages import PAGES, Page
from tests.support.paths import ROOT

FIGURE = re.compile(
    r"\d[\d.,]*(?: to [\d.,]+)? ?(?:ms|us|s|min|%|kB|MB|MiB|GB|GiB|minutes?|seconds?|times|/s|points?)(?!\w)"
)
MEASURED = re.compile(
    r"\b(?:(?:was|were|been) (?:measured|seen|timed)|took|in one run|of \d+ (?:runs|problems|plans)|"
    r"at the (?:median|worst|best)|(?:two|2|one) cores?|faster|slower|times (?:as fast|the speed)|"
    r"(?:takes?|costs?) (?:about |some |only )?\d[\d.,]* ?(?:ms|us|s|minutes?|seconds?|MiB)(?!\w)|throughput of)"
)
EVIDENCE = re.compile(
    r"benchmarks\.md|`(?:python -m|pytest|make (?:nightly|bench)|jellybean \w+ |pipeline \w+ --)[^`]*`"
)
WITHOUT_MEASUREMENTS = frozenset({"docs/benchmarks.md"})  # whose tables are checked below
CHECKED = [
    page for page in PAGES if page.name.startswith(("README", "docs/")) and page.name not in WITHOUT_MEASUREMENTS
]


def paragraphs(page: Page) -> Iterator[tuple[str, str]]:
    """Paragraphs, list items and table rows, each with the block of code before it, in which a command may stand."""
    before = ""
    for part in re.split(r"\n\s*\n|\n(?=- |\d+\. |\|)", page.text):
        if part.startswith("    "):
            before = part
        else:
            yield " ".join(part.split()), before
            before = ""


def without_evidence(page: Page) -> list[str]:
    return [
        sentence
        for paragraph, before in paragraphs(page)
        if not EVIDENCE.search(paragraph) and "jellybean " not in before
        for sentence in re.split(r"(?<=[.;])\s+(?=[A-Z`\[*])", paragraph)
        if FIGURE.search(sentence) and MEASURED.search(sentence)
    ]


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.name)
def test_measured_figures_have_a_command_or_a_table(page: Page) -> None:
    assert without_evidence(page) == []


def test_every_table_has_a_command_that_exists() -> None:
    records = load_all()
    assert len(records) > 30
    assert {record.name: commands for record in records if not (commands := exist(record))} == {}


def exist(record: Record) -> list[str]:
    """The record's commands; AssertionError if one of them names what is not there."""
    commands = re.findall(r"`([^`]+)`", record.command)
    for command in commands:
        program, _, rest = command.partition(" -m ")
        module, *words = rest.split()
        assert program == "python", command
        if module == "benchmarks":
            assert words == [record.name] and record.name in BENCHMARKS, command
        elif module == "pytest":
            selects_tests(words)
        else:
            assert (ROOT / f"{module.replace('.', '/')}.py").exists() or (ROOT / module.replace(".", "/")).is_dir(), (
                command
            )
    return commands


def selects_tests(words: list[str]) -> None:
    """The paths exist, and the marker is declared and stands in one of their files."""
    paths = [ROOT / word for word in words if word.startswith("tests/")]
    assert paths and all(path.exists() for path in paths), words
    marker = words[words.index("-m") + 1]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert any(declared.startswith(f"{marker}:") for declared in settings["markers"]), marker
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
    assert any(f"pytest.mark.{marker}" in file.read_text(encoding="utf-8") for file in files), words


def test_the_readmes_rows_have_the_commands_of_their_tables() -> None:
    commands = {record.name: record.command for record in load_all()}
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|") and "](docs/benchmarks.md#" in line]
    assert len(rows) >= 8
    for row in rows:
        (name,) = re.findall(r"docs/benchmarks\.md#(\w+)\)", row)
        assert row.rstrip(" |").rpartition(" | ")[2] == commands[name], row


def test_a_sentence_without_a_command_is_found() -> None:
    class Written(Page):
        text = "It took 3 s on two cores.\n\nIt took 3 s ([figures](benchmarks.md#x)).\n\nA timeout is 3 s.\n"

    assert without_evidence(Written(ROOT / "README.md")) == ["It took 3 s on two cores."]
