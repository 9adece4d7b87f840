"""Colours of all pages and pictures: every colour has one meaning, in a light and a dark scheme.

Status colours are for verdicts alone; targets and limits are dashed lines of ink, never a colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Colour:
    """One colour as #rrggbb in both schemes. `meaning` is empty for neutral colours: text, surfaces, thin lines."""

    light: str
    dark: str
    meaning: str = ""


def _tint(colour: str, share: float) -> str:
    """A colour mixed with white: `share` of it is kept."""
    parts = (round(255 - share * (255 - int(colour[at : at + 2], 16))) for at in (1, 3, 5))
    return "#" + "".join(f"{part:02x}" for part in parts)


# Three shades tell neighbours apart in a bar; which operator a part belongs to is said by its number.
SHADES = ("worker-1", "worker-2", "worker-3")
PALETTE: Mapping[str, Colour] = {
    "page": Colour("#f5f6f8", "#0f1218"),
    "surface": Colour("#ffffff", "#181c25"),
    "sunken": Colour("#eef0f4", "#202531"),
    "line": Colour("#d9dde5", "#313846"),
    "track": Colour("#e3e7ee", "#2b3240"),
    "ink": Colour("#171b24", "#e9ecf2"),
    "soft": Colour("#525b6b", "#a5afc0"),
    "flow": Colour("#a3acbd", "#4f596d", "traffic inside a tier, which is free"),
    "traffic": Colour("#8b3fc2", "#c79bff", "traffic over links between tiers, and its cost"),
    "worker-1": Colour("#084c56", "#2f8f9e", "workers: their load and their price"),
    "worker-2": Colour("#0e7c8b", "#4bb3c1", "workers: their load and their price"),
    "worker-3": Colour("#43a0ae", "#9adbe4", "workers: their load and their price"),
    "predicted": Colour("#66718c", "#8791ab", "predicted"),
    "measured": Colour("#1d5fd1", "#7fb0ff", "measured"),
    "good": Colour("#136f45", "#6fd6a1", "target met, or as predicted"),
    "good-bg": Colour("#dff3e7", "#12352a", "target met, or as predicted"),
    "warn": Colour("#8a5200", "#f2bf66", "not as predicted"),
    "warn-bg": Colour("#fdefd3", "#3a2c10", "not as predicted"),
    "bad": Colour("#b0232a", "#ff9a96", "target missed, or failed"),
    "bad-bg": Colour("#fde4e4", "#43191c", "target missed, or failed"),
}
ON_SHADE: Mapping[str, Colour] = {  # text on a shade
    "on-worker-1": Colour("#ffffff", "#0f1218"),
    "on-worker-2": Colour("#ffffff", "#0f1218"),
    "on-worker-3": Colour("#171b24", "#0f1218"),
}
# Curves of one picture that are alternatives, told apart by legend and dashes too.
SERIES = ("#2f3f8f", "#c2571a", "#d6458b", "#7a8b1a", "#6d4c41")
# Parts of a tensor, by the first device that has them: tints of the series, dark enough to tell apart, light enough for
# numbers in ink.
TINTS = tuple(_tint(colour, share) for share in (0.3, 0.55) for colour in SERIES)
# Boxes of a pipeline schedule: (a device's first stage or replica, its second).
FORWARD, BACKWARD, WEIGHT_GRADIENT = ("#a9d3f5", "#5b9fd8"), ("#b8e0b0", "#6fb463"), ("#f6dfa0", "#dcb24a")


def style_sheet() -> str:
    """The palette as CSS variables. Printing uses the light scheme: dark ink on paper."""
    tokens = {**PALETTE, **ON_SHADE}
    light = " ".join(f"--{name}: {colour.light};" for name, colour in tokens.items())
    dark = " ".join(f"--{name}: {colour.dark};" for name, colour in tokens.items())
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{\n  :root {{ {dark} }}\n}}\n"
    )
