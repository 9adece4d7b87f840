"""Tables of figures in the terminal."""

from __future__ import annotations

from collections.abc import Collection

from rich.padding import Padding
from rich.table import Table

INDENT = (0, 0, 0, 2)


def figures_table(*headings: str, words: Collection[str] = (), gap: int = 2) -> Table:
    """A table without lines. Figures are flush right in one line; columns of `words` are flush left and may wrap."""
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
    for heading in headings:
        if heading in words:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    return table


def indented(table: Table) -> Padding:
    """A table below a headline."""
    return Padding(table, INDENT, expand=False)
