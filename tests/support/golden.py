"""What commands print, kept in `docs/golden`, and the part of it that the README shows.

A block of the README is an excerpt of a golden file: the lines that match the excerpt's patterns, in order. The same
patterns are what a later run must print, whatever its figures are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import DOCS, ROOT

README = ROOT / "README.md"
GOLDEN = DOCS / "golden"
LEFT_OUT = "..."
MEETS = "Meets its targets"
_FIGURE = r"[\d.,]+(?: ?(?:ms|s|us|/s))?"


class FormError(AssertionError):
    """A line of the excerpt is missing in what a command printed."""


@dataclass(frozen=True)
class Shown:
    """A golden file and the lines of it that the README shows.

    Attributes:
        name: file in `docs/golden`, without `.txt`; the README's block follows the comment `<!-- golden: NAME -->`.
        columns: width of the terminal, so that the block fits the page.
        patterns: regular expressions of whole lines, in their order; `FIGURE` stands for a number with its unit.
        commands: arguments of `jellybean`, one after another; the output of the last one is the golden file's.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    columns: int
    patterns: tuple[str, ...]

    @property
    def path(self) -> Path:
        return GOLDEN / f"{self.name}.txt"


PLAN = Shown(
    "plan",
    (("init", "vqa", "v"), ("plan", "v")),
    100,
    (
        r"visual-question-answering: FIGURE USD/h \(compute FIGURE, network FIGURE\), accuracy .*, proven",
        r"optimal in FIGURE",
        r"  operator +variant +where +rate/s +load",
        r"  image_features +\S+ +edge: .*",
        *[r" +(edge|cloud): .*"] * 2,
        r"  speech_to_text +\S+ +edge: .*",
        *[r" +(edge|cloud): .*"] * 2,
        r"  answer +default +cloud: .*",
        r"  saves +FIGURE % against all in cloud \(FIGURE\)",
        r"  saves +FIGURE % against most accurate variants \(FIGURE\)",
        r"  saves +FIGURE % against greedy tier by tier \(FIGURE\)",
    ),
)
DEMO = Shown(
    "demo",
    (("demo", "demo/digits"),),
    110,
    (
        r"demo/digits: copied from the example digits",
        r"digits: FIGURE USD/h \(compute FIGURE, network FIGURE\), accuracy FIGURE >= 89, proven optimal in FIGURE",
        r"  saves +FIGURE % against .*",
        r"serving digits with \d+ workers",
        rf"{MEETS}.*|Misses its targets.*|Not as predicted.*",  # on a busy machine; golden files are of another
        r"  figure +predicted +measured +ratio +tolerance +verdict( +target)?",
        r"  Cost \(USD/h\) .*",
        r"  Accuracy \(%\) .*",
        r"  Throughput .*",
        r"  Highest sustained rate .*",
        r"  Latency p50 .*",
        r"  Latency p90 .*",
        r"  Latency p99 .*",
        r"report: demo/digits/report\.html",
    ),
)
SHOWN = (PLAN, DEMO)


def printed(text: str) -> list[str]:
    """The lines of an output without blanks at their ends; the project's folder as the commands name it."""
    return [re.sub(r"(?<= )/\S*/(?=demo/digits)", "", line).rstrip() for line in text.rstrip().splitlines()]


def excerpt(shown: Shown, lines: Sequence[str]) -> list[str]:
    """The lines that the README shows, with `...` where lines are left out; FormError if one of them is missing."""
    chosen: list[str] = []
    start = 0
    for pattern in shown.patterns:
        expression = re.compile(pattern.replace("FIGURE", _FIGURE))
        place = next((at for at in range(start, len(lines)) if expression.fullmatch(lines[at])), None)
        if place is None:
            raise FormError(f"{shown.name}: no line after line {start} has the form {pattern!r}:\n" + "\n".join(lines))
        if place > start:
            chosen.append(LEFT_OUT)
        chosen.append(lines[place])
        start = place + 1
    return chosen


def block_of(shown: Shown, page: str) -> list[str]:
    """The README's block after the golden file's comment."""
    match = _block(shown).search(page)
    if match is None:
        raise FormError(f"the README has no block after {_comment(shown)}")
    return [line.removeprefix("    ") for line in match["block"].rstrip("\n").splitlines()]


def with_block(shown: Shown, page: str, lines: Sequence[str]) -> str:
    """The README with another block."""
    block_of(shown, page)
    block = "".join(f"    {line}".rstrip() + "\n" for line in lines)
    return _block(shown).sub(lambda match: match["head"] + block, page)


def _comment(shown: Shown) -> str:
    return f"<!-- golden: {shown.name} -->"


def _block(shown: Shown) -> re.Pattern[str]:
    return re.compile(rf"(?P<head>{re.escape(_comment(shown))}\n\n)(?P<block>(?:    .*\n|\n(?=    ))+)")
