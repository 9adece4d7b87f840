"""Read the file of sites that differ: CSV with a row for each site and a column for each value that is not common.

An empty cell means that the site has what the documents state. All problems are reported at once, with line and column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jellybean.documents.csv_lines import cell_columns, cells_of, read_lines
from jellybean.documents.schema.fields import name_problem
from jellybean.documents.schema.infrastructure import MAX_SITES
from jellybean.documents.site_columns import NOTES, SITE, SiteColumn, SiteColumns
from jellybean.errors import DocumentProblem
from jellybean.quantities import InvalidValueError, quoted

_MAX_PROBLEMS = 100


@dataclass(frozen=True)
class Site:
    """One row. `values`: column -> value in SI units; `columns`: column -> where its cell begins in the line."""

    name: str
    line: int
    values: Mapping[str, Any]
    columns: Mapping[str, int]


@dataclass(frozen=True)
class SiteTable:
    """The sites of one tier, which differ."""

    file: Path
    tier: str
    columns: Mapping[str, SiteColumn]
    sites: tuple[Site, ...]

    def of_workflow(self, name: str) -> SiteTable:
        """The table with the columns of the fleet and of one of several workflows."""
        columns = {key: column for key, column in self.columns.items() if column.workflow in ("", name)}
        return replace(self, columns=columns)

    def changes(self, site: Site, section: str) -> Mapping[str, Mapping[str, Any]]:
        """Entry of a section -> field -> value, of what a site states."""
        found: dict[str, dict[str, Any]] = {}
        for name, value in site.values.items():
            column = self.columns.get(name)
            if column is not None and column.section == section:
                found.setdefault(column.entry, {})[column.field] = value
        return found

    def read(self, column: str, text: str) -> Any:
        """The value of a column in a text. InvalidValueError if no site can have it."""
        if column not in self.columns:
            raise InvalidValueError(*SiteColumns(self.tier, self.columns, {}).refusal(column))
        return self.columns[column].reader.read(text)

    def with_values(self, changes: Mapping[str, Mapping[str, Any]]) -> SiteTable:
        """The table with other values: site -> column -> value; with None the site has the common value."""

        def changed(site: Site) -> Site:
            values = {**site.values, **changes.get(site.name, {})}
            return replace(site, values={column: value for column, value in values.items() if value is not None})

        return replace(self, sites=tuple(map(changed, self.sites)))

    def problem(self, site: Site, column: str, message: str, hint: str) -> DocumentProblem:
        """A problem with a site's value, or with its row if it does not state this value."""
        return DocumentProblem(str(self.file), site.line, site.columns.get(column, 1), column, message, hint)


@dataclass
class _Reading:
    """State of reading a file: its sites and problems so far. `header`: name of each column, empty if it is refused."""

    file: Path
    columns: SiteColumns
    header: tuple[str, ...] = ()
    sites: dict[str, Site] = field(default_factory=dict)
    problems: list[DocumentProblem] = field(default_factory=list)

    def add(self, line: int, column: int, path: str, message: str, hint: str = "") -> None:
        self.problems.append(DocumentProblem(str(self.file), line, column, path, message, hint))


def read_site_table(file: Path, columns: SiteColumns) -> tuple[SiteTable, list[DocumentProblem]]:
    """The sites in a file, and its problems; sites with problems are left out."""
    reading = _Reading(file, columns)
    lines = read_lines(file, f"its header is for example {columns.example}")
    if isinstance(lines, DocumentProblem):
        reading.problems.append(lines)
    else:
        _read(lines, reading)
    table = SiteTable(file, columns.tier, columns.by_name, tuple(reading.sites.values()))
    return table, reading.problems[:_MAX_PROBLEMS]


def _read(lines: Sequence[str], reading: _Reading) -> None:
    if not any(line.strip() for line in lines):
        reading.add(1, 1, "", "the file is empty", f"write a header, for example {reading.columns.example}")
        return
    if not _read_header(lines[0], reading):
        return
    rows = [(number, line) for number, line in enumerate(lines[1:], 2) if line.strip(" ,\t")]
    if not rows:
        reading.add(1, 1, "", "the file has no rows below the header", "add a row for each site")
    if len(rows) > MAX_SITES:
        reading.add(rows[MAX_SITES][0], 1, "", f"{len(rows):,} sites are too many", f"at most {MAX_SITES:,}")
        return
    first: dict[str, int] = {}
    for number, line in rows:
        _read_row(number, line, first, reading)
        if len(reading.problems) >= _MAX_PROBLEMS:
            return


def _read_header(line: str, reading: _Reading) -> bool:
    """Read the names of the columns; False if the rows cannot be read without knowing where the sites' names are."""
    names = [name.strip() for name in cells_of(line)]
    starts = cell_columns(line, names)
    if SITE not in names:
        by_other = next((sign for sign in ";\t" if sign in line), "")
        hint = "separate the columns by commas" if by_other else f"write for example {reading.columns.example}"
        reading.add(1, 1, SITE, "the header has no column site", hint)
        return False
    counts = Counter(names)
    kept: list[str] = []
    for place, (name, start) in enumerate(zip(names, starts, strict=True)):
        known = name in reading.columns.by_name or name in (SITE, *NOTES) or reading.columns.is_of_another(name)
        if not name:
            reading.add(1, start, "", f"column {place + 1} has no name", "name or remove it")
        elif counts[name] > 1 and name in names[:place]:
            reading.add(1, start, name, "a second column of this name", "keep one of them")
        elif not known:
            reading.add(1, start, name, *reading.columns.refusal(name))
        kept.append(name if known and name not in names[:place] else "")
    reading.header = tuple(kept)
    return True


def _read_row(number: int, line: str, first: dict[str, int], reading: _Reading) -> None:
    """Read a site. `first`: line of each site's name so far."""
    cells = [cell.strip() for cell in cells_of(line)]
    starts = cell_columns(line, cells)
    most = len(reading.header)
    if len(cells) > most:
        message = f"{len(cells)} cells, but the header has {most} columns"
        reading.add(number, starts[most], "", message, "quote a cell that contains a comma, or name the column")
        return
    row = {name: (cell, start) for name, cell, start in zip(reading.header, cells, starts, strict=False) if name}
    before = len(reading.problems)
    name, start = row.get(SITE, ("", 1))
    _check_name(number, start, name, first, reading)
    values: dict[str, Any] = {}
    columns: dict[str, int] = {}
    for key, (cell, start) in row.items():
        if not cell or key not in reading.columns.by_name:
            continue
        try:
            values[key], columns[key] = reading.columns.by_name[key].reader.read(cell), start
        except InvalidValueError as error:
            reading.add(number, start, key, error.message, error.hint)
    if len(reading.problems) == before:
        reading.sites[name] = Site(name, number, values, columns)


def _check_name(number: int, start: int, name: str, first: dict[str, int], reading: _Reading) -> None:
    if not name:
        reading.add(number, start, SITE, "the site has no name", "write a name that no other site has")
    elif name in first:
        reading.add(number, start, SITE, f"a second site {quoted(name)}, first on line {first[name]}", "rename one")
    elif (problem := name_problem(name)) is not None:
        reading.add(number, start, SITE, problem.message, problem.hint)
    first.setdefault(name, number)
