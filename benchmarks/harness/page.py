"""`docs/benchmarks.md`, rendered from all records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness.result import Record, Result, Table, Topic

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
MOSTLY = 2 / 3  # share of figures in a column of figures; others are words such as "infeasible"
_FIGURE = re.compile(r"(?:[<>] ?|[+-])?\d[\d.,]*(?: ?[^\W\d]{1,3}(?:/s)?| ?%|/s)?")
INTRODUCTION = """\
# Benchmarks

<!-- Rendered from benchmarks/results/*.json by `python -m benchmarks --render`: do not edit. -->

Each table states how it was taken, on what hardware, what its figures are compared to, and the command that repeats it.
`make bench` runs all benchmarks and renders this page; `python -m benchmarks NAME` runs one. A gap is the relative
difference between the cost of a plan and the proven lower bound: gap 0 is a proof of optimality.
"""


def render(records: Sequence[Record]) -> str:
    """The whole page as Markdown: a table of contents, then one section per record, by topic and name."""
    by_topic = {topic: [record for record in records if record.result.topic is topic] for topic in Topic}
    used = {topic: sorted(own, key=lambda record: record.name) for topic, own in by_topic.items() if own}
    contents = [f"- {topic}: " + ", ".join(map(_link, own)) for topic, own in used.items()]
    parts = [INTRODUCTION + "\n" + "\n".join(contents)]
    for topic, own in used.items():
        parts.append(f"## {topic}")
        parts += [section(record) for record in own]
    return "\n\n".join(parts) + "\n"


def section(record: Record) -> str:
    """The section of one record."""
    heading = f'<a id="{record.name}"></a>\n\n### {record.result.title}'
    taken = f"Taken {record.date} on {record.hardware}. To repeat: {record.command}."
    return "\n\n".join([heading, taken, *_body(record.result)])


def table_text(table: Table) -> str:
    """A table as Markdown, after its caption."""
    columns = ([row[place] for row in table.rows] for place in range(len(table.columns)))
    rules = ("---:|" if _is_numeric(cells) else "---|" for cells in columns)
    lines = [_line(table.columns), "|" + "".join(rules), *map(_line, table.rows)]
    return (f"{table.caption}:\n\n" if table.caption else "") + "\n".join(lines)


def result_text(result: Result) -> str:
    """A result as Markdown, as the terminal shows it after a run."""
    return "\n\n".join([f"### {result.title}", *_body(result)])


def _body(result: Result) -> Iterator[str]:
    yield result.method
    yield f"Compared to: {result.reference}"
    yield from map(table_text, result.tables)
    if result.notes:
        yield "\n".join(f"- {note}" for note in result.notes)
    if result.picture:
        yield f"![{result.picture.alt}](images/{result.picture.file})"


def _is_numeric(cells: Sequence[str]) -> bool:
    """True for a column of figures, which is aligned to the right: `0.14`, `1,000`, `99.3 ms`."""
    known = [cell for cell in cells if cell]
    figures = sum(_FIGURE.fullmatch(cell) is not None for cell in known)
    return bool(known) and figures >= MOSTLY * len(known)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _link(record: Record) -> str:
    return f"[{record.result.title}](#{record.name})"
