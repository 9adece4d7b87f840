"""The result of a benchmark as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Topic(StrEnum):
    """Chapters of the page, in its order."""

    PLANNING = "Planning"
    PREDICTION = "Predicted and measured"
    SERVING = "Serving"
    PIPELINES = "Pipelines"
    TRAINING = "Training"
    KUBERNETES = "Kubernetes"
    COMMAND_LINE = "Command line"


@dataclass(frozen=True)
class Table:
    """Cells as they are shown, Markdown allowed.

    Raises:
        ValueError: a row has not one cell per column.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""  # what sets it apart from the other tables of its result

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{len(row)} cells for {len(self.columns)} columns: {' | '.join(row)}")

    @classmethod
    def of(cls, columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> Table:
        """A table of any values, each shown by `str`."""
        return cls(tuple(columns), tuple(tuple(str(cell) for cell in row) for row in rows), caption)


@dataclass(frozen=True)
class Picture:
    """A file in `docs/images/`. `data`: what it is drawn from, as JSON values, so that it can be drawn again."""

    file: str
    alt: str
    data: Any = None


@dataclass(frozen=True)
class Result:
    """What a benchmark returns."""

    title: str
    topic: Topic
    method: str  # what was run, how often, and which statistic a figure is
    reference: str  # what the figures are compared to
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()  # after the tables; a figure here is computed from the same run
    picture: Picture | None = None


@dataclass(frozen=True)
class Record:
    """A result and the circumstances of its measurement: one file in `benchmarks/results/`."""

    name: str  # the file's, without `.json`
    result: Result
    command: str  # that repeats the measurement
    date: str  # YYYY-MM-DD
    hardware: str
