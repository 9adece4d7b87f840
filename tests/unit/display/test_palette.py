"""One colour has one meaning: in the palette, in the style sheet and in the source of all pictures."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from jellybean.display import palette, terminal
from jellybean.display.palette import PALETTE, SERIES, Colour

ROOT = Path(__file__).parents[3]
STYLE = ROOT / "jellybean/report/templates/style.css"
LEAST_DISTANCE = 15.0  # CIE76; 2.3 is just noticeable, and marks are small
NEUTRAL = {name for name, colour in PALETTE.items() if not colour.meaning}
MARKS = {name: colour for name, colour in PALETTE.items() if colour.meaning and not name.endswith("-bg")}
CSS_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")


def _lab(colour: str) -> tuple[float, float, float]:
    """CIELAB (D65) of #rrggbb; CIE 15:2004, section 8."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _distance(one: str, other: str) -> float:
    return sum((a - b) ** 2 for a, b in zip(_lab(one), _lab(other), strict=True)) ** 0.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_different_meanings_can_be_told_apart(scheme: str) -> None:
    for (one, first), (other, second) in itertools.combinations(MARKS.items(), 2):
        if first.meaning != second.meaning:
            assert _distance(getattr(first, scheme), getattr(second, scheme)) >= LEAST_DISTANCE, (one, other)


def test_series_of_pictures_have_no_meaning_of_the_palette() -> None:
    for one, other in itertools.combinations(SERIES, 2):
        assert _distance(one, other) >= LEAST_DISTANCE, (one, other)
    for name, colour in MARKS.items():
        assert all(_distance(colour.light, series) >= LEAST_DISTANCE for series in SERIES), name


def test_the_check_would_notice() -> None:
    """Compute and measured were the same blue, network and a warning nearly the same orange."""
    assert _distance("#1d5fd1", "#1d5fd1") < LEAST_DISTANCE <= _distance("#1d5fd1", MARKS["worker-2"].light)
    assert _distance("#2f6fde", MARKS["measured"].light) < LEAST_DISTANCE


COLOUR = re.compile(
    r"""["' ]#[0-9a-fA-F]{6}["';]|\brgba?\("""  # in style sheets, pages and pictures
    r"""|["'](?:bold |bright_)*(?:red|green|yellow|blue|cyan|magenta|white|black|gr[ae]y)\d*["']"""  # by name
    r"""|\bcolormaps\b|\bcmap\b|["']C\d["']|["'][krgbcmyw](?:-|:|--|-\.)["']|colou?r=["']0?\.\d+["']"""  # matplotlib
)


def test_colours_stand_in_the_palette_alone() -> None:
    """No page, picture or terminal view brings a colour of its own."""
    homes = {ROOT / f"{module.__name__.replace('.', '/')}.py" for module in (palette, terminal)}
    sources = [path for folder in ("jellybean", "benchmarks") for path in (ROOT / folder).rglob("*")]
    found = [
        (path.relative_to(ROOT).as_posix(), text)
        for path in sources
        if path.suffix in {".py", ".css", ".j2"} and path not in homes
        for text in COLOUR.findall(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        '"#1d5fd1"', "rgb(1, 2, 3)", 'Text(line, "yellow")', 'Text(title, "bold red")', 'colormaps["Pastel1"]',
        'style = "k-"', 'color="0.6"', 'color="C0"',
    ],
)  # fmt: skip
def test_the_check_for_colours_would_notice(text: str) -> None:
    assert COLOUR.search(text)


def test_pictures_of_the_documentation_are_in_the_palette() -> None:
    """Made by `python -m tests.tools.pictures`."""
    known = {colour.light for colour in (*PALETTE.values(), *palette.ON_SHADE.values())} | {*SERIES, *palette.TINTS}
    known |= {*palette.FORWARD, *palette.BACKWARD, *palette.WEIGHT_GRADIENT}
    pictures = {
        path.relative_to(ROOT).as_posix(): set(re.findall(r"#[0-9a-f]{6}\b", path.read_text(encoding="utf-8")))
        for path in (ROOT / "docs/images").rglob("*.svg")
    }
    assert len(pictures) >= 20
    assert {name: sorted(colours - known) for name, colours in pictures.items() if colours - known} == {}


def test_every_mark_of_the_page_uses_one_colour_of_the_palette() -> None:
    """A CSS class that fills or strokes a mark names a token; a token with a meaning is used by classes of it alone."""
    text = STYLE.read_text(encoding="utf-8")
    users: dict[str, set[str]] = {}
    for selector, body in CSS_RULE.findall(text):
        for token in re.findall(r"(?:fill|stroke|color|background): (?:[^;]* )?var\(--([a-z0-9-]+)\)", body):
            assert token in PALETTE or token in palette.ON_SHADE, token
            users.setdefault(token, set()).update(part.strip() for part in selector.split(","))
    allowed = {
        "traffic": {".line.paid", ".pill.paid", ".traffic"},
        "measured": {".measured", ".trend", ".interval"},
        "predicted": {".predicted", ".foreseen"},
        "worker-2": {".worker", ".worker-2"},
        "flow": {".line", ".source"},
    }
    for token, selectors in allowed.items():
        assert users[token] == selectors, token
    statuses = set().union(*(users[f"{name}{part}"] for name in ("good", "warn", "bad") for part in ("", "-bg")))
    words = ("good", "warn", "bad", "tolerance")
    assert all(any(word in selector for word in words) for selector in statuses), statuses


def test_the_style_sheet_has_both_schemes_and_prints_the_light_one() -> None:
    sheet = palette.style_sheet()
    for name, colour in PALETTE.items():
        assert isinstance(colour, Colour)
        assert f"--{name}: {colour.light};" in sheet
        assert f"--{name}: {colour.dark};" in sheet
    assert "@media screen and (prefers-color-scheme: dark)" in sheet
    assert {"ink", "soft", "surface"} <= NEUTRAL
