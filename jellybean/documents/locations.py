"""Locate values of the problem in the documents: file, line, path for `--set`, and the text as written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jellybean.documents.csv_lines import cells_of
from jellybean.documents.layout import INFRASTRUCTURE_FILE, WORKFLOW_FILE, WORKFLOWS_FOLDER, document_files
from jellybean.documents.multi_workflow import SITE_SEPARATOR, AnyProject, MultiWorkflowProject
from jellybean.documents.overrides import apply_multi_workflow_overrides, apply_overrides, option_text
from jellybean.documents.project import Project
from jellybean.documents.schema.reader import DocPath, Tree, dotted, read_file
from jellybean.documents.site_table import Site, SiteTable


@dataclass(frozen=True, slots=True)
class Location:
    """Location of one value. `file` is a path, or a `--set` option (then `line` is None).

    `path` is in the notation of `--set`, `written` the value as written. If the document omits the value (so that its
    default applies), `written` is None and the position is that of the enclosing key.
    """

    file: str
    line: int | None
    path: str
    written: str | None

    def __str__(self) -> str:
        if self.line is None:
            return self.file
        path = Path(self.file)
        prefix = f"{path.parent.name}/" if path.parent.parent.name == WORKFLOWS_FOLDER else ""
        return f"{prefix}{path.name}:{self.line}"

    def to_dict(self) -> dict[str, Any]:
        """The location as JSON values."""
        return asdict(self)


class DocumentLocations:
    """Looks up locations in a project's documents after applying `--set` options.

    Documents are named `workflow` and `infrastructure`; in a multi-workflow project by workflow name and
    `infrastructure`.
    """

    def __init__(
        self,
        trees: Mapping[str, Tree],
        *,
        qualified: bool = False,
        table: SiteTable | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        """`trees`: document name -> parsed document. `qualified`: `--set` paths begin with the workflow's name.

        `table`: the sites that differ, by whose names documents are called; `overrides`: the `--set` options.
        """
        self._trees, self._qualified, self._table, self._overrides = trees, qualified, table, overrides

    def locate(self, document: str, *path: str | int) -> Location:
        """Location of the value at `path`; of a site where that may differ from the other ones."""
        workflow, _, name = document.rpartition(SITE_SEPARATOR)
        common = self._common("infrastructure" if path[0] in ("workers", "links") else document, path)
        column = dotted((*filter(None, [workflow]), *path))
        if self._table is None or column not in self._table.columns:
            return common
        sites = (site for site in self._table.sites if site.name == name)
        return next((self._of_site(self._table.file, site, column, common) for site in sites), common)

    def _of_site(self, file: Path, site: Site, column: str, common: Location) -> Location:
        """Location of a site's value: an option, a cell of the file, or what is common to all sites."""
        path = f"{site.name}.{column}"
        option = next((text for text in reversed(self._overrides) if text.partition("=")[0].strip() == path), None)
        if option is not None:
            return Location(option_text(option), None, path, option.partition("=")[2].strip())
        if column not in site.columns:
            return replace(common, path=path)
        lines = file.read_text(encoding="utf-8-sig").splitlines()
        header, row = (cells_of(lines[number - 1]) for number in (1, site.line))
        return Location(
            str(file), site.line, path, dict(zip(map(str.strip, header), row, strict=False))[column].strip()
        )

    def _common(self, document: str, path: DocPath) -> Location:
        tree = self._trees[document]
        value = _value(tree, path)
        mark = tree.position(path, key=True)
        workflow = document.partition(SITE_SEPARATOR)[0]
        within = (workflow,) if self._qualified and document != "infrastructure" else ()
        return Location(mark.file, mark.line, dotted((*within, *path)), None if value is None else _text(value))


def document_locations(project: AnyProject, overrides: Sequence[str] = ()) -> DocumentLocations:
    """Read a project's documents again for source positions. `overrides`: the `--set` options it was loaded with."""
    if not isinstance(project, MultiWorkflowProject):
        files = document_files(project.directory)
        trees = {name: read_file(file) for name, file in files.items() if name != "profiles"}
        apply_overrides(trees, overrides)
        return DocumentLocations(trees)
    if only := project.written.get(""):
        return _of_sites(project, only, overrides)
    fleet = read_file(project.directory / INFRASTRUCTURE_FILE)
    stated = project.written_workflows
    own = {name: {"workflow": read_file(p.directory / WORKFLOW_FILE)} for name, p in stated.items()}
    apply_multi_workflow_overrides(fleet, own, overrides)
    found = {name: own[project.written_name(name) or name]["workflow"] for name in project.workflows}
    tables = [own.site_table for own in project.written.values() if own.site_table is not None]
    columns = {name: column for table in tables for name, column in table.columns.items()}
    table = replace(tables[0], columns=columns) if tables else None
    return DocumentLocations({"infrastructure": fleet, **found}, qualified=True, table=table, overrides=overrides)


def _of_sites(project: MultiWorkflowProject, written: Project, overrides: Sequence[str]) -> DocumentLocations:
    """Locations for a project with sites that differ: all of them have the workflow of the written documents."""
    files = document_files(written.directory)
    trees = {name: read_file(files[name]) for name in ("workflow", "infrastructure")}
    apply_overrides(trees, overrides)
    every = trees | dict.fromkeys(project.workflows, trees["workflow"])
    return DocumentLocations(every, table=written.site_table, overrides=overrides)


def _text(value: Any) -> str:
    """The value as text in the notation of `--set`."""
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _value(tree: Tree, path: DocPath) -> Any:
    """The value that the document has at a path; None if it has none."""
    value = tree.data
    for part in path:
        known = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
        value = known.get(part)
    return value
