"""Values of the HTML page's bar charts; positions are percentages of a chart's width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

CHARACTER = 3.1  # width of a character, in percent of the narrowest chart (200 pixels)
GAP = 3.0  # percent between the texts of an axis


@dataclass(frozen=True, slots=True)
class Part:
    """A segment of a bar. Start and width are in percent of the chart's width; `style` is its CSS class.

    `label` is a number drawn inside; it is empty if the segment is too narrow.
    """

    start: float
    width: float
    style: str
    hint: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Dot:
    """A figure on the scale. `clipped`: -1 below or 1 above the ends of the scale, where an arrow stands for it."""

    at: float
    style: str
    clipped: int = 0


@dataclass(frozen=True, slots=True)
class BarRow:
    """One row of a bar chart. `marks` are vertical lines (position in percent, CSS class)."""

    name: str
    note: str
    figure: str
    parts: tuple[Part, ...]
    marks: tuple[tuple[float, str], ...] = ()
    dot: Dot | None = None

    @property
    def about(self) -> str:
        name = f"{self.name} {self.note}" if self.note else self.name
        beyond = ("beyond the scale",) if self.dot is not None and self.dot.clipped else ()
        return "; ".join([f"{name}: {self.figure}", *beyond, *(part.hint for part in self.parts)])


@dataclass(frozen=True, slots=True)
class Tick:
    """One text of an axis at a position in percent."""

    at: float
    text: str

    @property
    def anchor(self) -> str:
        """CSS class that keeps the text inside the chart."""
        return "" if self.at < 12 else "end" if self.at > 88 else "mid"

    @property
    def ends(self) -> tuple[float, float]:
        """Left and right end of the text, in percent."""
        width = CHARACTER * len(self.text)
        left = self.at - {"": 0.0, "mid": width / 2, "end": width}[self.anchor]
        return left, left + width


@dataclass(frozen=True, slots=True)
class Chart:
    """Rows on one scale, with the texts of its axis."""

    rows: tuple[BarRow, ...]
    ticks: tuple[Tick, ...]


def axis(first: Sequence[Tick], others: Sequence[Tick] = ()) -> tuple[Tick, ...]:
    """The ticks from left to right, without those of `others` whose text would touch another one."""
    kept = list(first)
    for tick in others:
        left, right = tick.ends
        if all(right + GAP <= other.ends[0] or other.ends[1] + GAP <= left for other in kept):
            kept.append(tick)
    return tuple(sorted(kept, key=lambda tick: tick.at))


def round_up(value: float) -> float:
    """The next end of a scale: 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 or 10 times a power of ten; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    steps = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    return next(step * power for step in steps if value <= step * power * (1 + 1e-9))
