"""Words and tables that all parts of an explanation share."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jellybean.display import formats
from jellybean.documents.locations import Location
from jellybean.planning.explain import Explained
from jellybean_solver import Requirement, RequirementKind


def more_time(explained: Explained) -> str:
    """Advice to try a longer time limit, if questions were skipped for lack of time; otherwise an empty text."""
    if explained.enough_s is None:
        return ""
    left = explained.explanation.unanswered
    what = f"{count_of(left)} not solved for lack of time" if left else "the search reached its time limit"
    return f"; {what}: try --time-limit {explained.enough_s:g}"


def count_of(problems: int) -> str:
    return formats.count(problems, "problem")


def section(title: str, table: RenderableType) -> list[RenderableType]:
    return [Text(title, "bold"), Padding(table, (0, 0, 0, 2), expand=False)]


def table_of(*headings: str, right: Iterable[int] = (), whole: Iterable[int] = ()) -> Table:
    """An empty table. `right`: right-aligned columns of numbers; `whole`: text columns. Neither kind wraps."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=any(headings))
    numbers, unfolded = set(right), {*right, *whole}
    for index, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="right" if index in numbers else "left",
            no_wrap=index in unfolded,
            overflow="fold",
        )
    return table


def amount(kind: RequirementKind, value: float | None) -> str:
    """A requirement's value as text with its unit; empty for None."""
    if value is None:
        return ""
    texts = {
        RequirementKind.ACCURACY: lambda: formats.accuracy(value),
        RequirementKind.MEAN_ACCURACY: lambda: formats.accuracy(value),
        RequirementKind.RATE: lambda: f"x{formats.plain(value)}",
        RequirementKind.BUDGET: lambda: f"{formats.usd(value)} USD/h",
        RequirementKind.LATENCY_P99: lambda: formats.duration(value),
        RequirementKind.BANDWIDTH: lambda: f"{formats.number(value * 8e-6)} Mbit/s",
        RequirementKind.MEMORY: lambda: formats.size(value),
        RequirementKind.DEVICE_MEMORY: lambda: formats.size(value),
        RequirementKind.COUNT: lambda: f"{value:.0f}",
    }
    return texts[kind]() if kind in texts else formats.plain(value, 3)


def title_of(explained: Explained, requirement: Requirement) -> Text:
    """The requirement as written in the documents; one line per place that states it.

    What one place states of several sites has their names.
    """
    places = explained.locations[requirement]
    text = "\n".join(written(location, requirement) for location in places)
    is_of_several = places and list(explained.locations.values()).count(places) > 1
    return Text(f"{text} ({' -> '.join(requirement.subjects)})" if is_of_several else text)


def written(location: Location, requirement: Requirement) -> str:
    """One place of a requirement as path and value, for example `slo.accuracy: 56`."""
    if requirement.kind is RequirementKind.MARGIN:
        return f"{location.path}: {requirement.words.removeprefix('the margin of ')}"
    own = f"1 {requirement.subjects[0]}" if requirement.kind is RequirementKind.SURVIVE else "exclusive"
    default = amount(requirement.kind, requirement.value) or own
    return f"{location.path}: {location.written if location.written is not None else f'{default} (default)'}"
