"""Which tests execute which product line: kept in a data base in `.coverage-tests/`, made by `--measure`."""

from __future__ import annotations

import ast
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import sha256
from pathlib import Path

import coverage
from coverage.numbits import numbits_to_nums

from tests.tools.mutate.recorder import CONTEXT, TESTS
from tests.tools.mutate.rooms import PRODUCT
from tests.tools.mutate.tree import Tree

FOLDER = ".coverage-tests"
_SCHEMA = """
create table if not exists source(id integer primary key, file text, sha256 text, text text, unique(file, sha256));
create table if not exists test(id integer primary key, name text unique, seconds real);
create table if not exists executed(source integer, test integer, numbits blob, primary key(source, test));
create index if not exists executed_test on executed(test);
"""
_MEASURING = """
[run]
data_file = {folder}/data
parallel = true
context = ${{{context}}}
source = {source}
sigterm = true
patch = _exit
disable_warnings = no-data-collected, module-not-imported, module-not-measured, already-imported, couldnt-parse
"""


@dataclass(frozen=True, slots=True, order=True)
class CoveringTest:
    """A test, and how long it took when it was measured."""

    seconds: float
    name: str


def measure(tree: Tree, store: Path, tests: list[str], selection: str, processes: int) -> int:
    """Run tests in the copied tree and record what each executes, in place of what is recorded for them.

    Returns how many ran. Tests that fail are recorded too: what they execute is the same.
    """
    folder = tree.root.parent / "measured"
    folder.mkdir()
    source = ",".join(str(tree.root / package) for package in PRODUCT)
    (folder / "coveragerc").write_text(
        _MEASURING.format(folder=folder, context=CONTEXT, source=source), encoding="utf-8"
    )
    ran = folder / "tests.jsonl"
    variables = {"COVERAGE_PROCESS_START": str(folder / "coveragerc"), TESTS: str(ran)}
    in_parallel = ["-n", str(processes), "--dist", "loadfile"] if processes > 1 else []
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.tools.mutate.recorder",
        "-m",
        selection,
        *in_parallel,
        *tests,
    ]
    subprocess.run(command, cwd=tree.root, env=tree.environment(variables), check=False)
    if not ran.exists():
        raise SystemExit(f"no test ran: {' '.join(tests) or 'tests'}: see the output above")
    collector = coverage.Coverage(data_file=str(folder / "data"), config_file=str(folder / "coveragerc"))
    collector.combine([str(folder)], strict=True)
    collector.save()
    entries = [json.loads(line) for line in ran.read_text(encoding="utf-8").splitlines()]
    with closing(_opened(store)) as base, base:
        _record(base, tree, folder / "data", entries, tests)
    return len(entries)


def _opened(store: Path) -> sqlite3.Connection:
    store.parent.mkdir(exist_ok=True)
    base = sqlite3.connect(store)
    base.executescript(_SCHEMA)
    return base


def _record(
    base: sqlite3.Connection, tree: Tree, data: Path, entries: list[dict[str, object]], selected: list[str]
) -> None:
    """Replace the entries of the selected tests."""
    names = {str(entry["test"]) for entry in entries}
    for (known,) in base.execute("select name from test").fetchall():
        if known in names or not selected or any(known.startswith(path.rstrip("/")) for path in selected):
            base.execute("delete from executed where test = (select id from test where name = ?)", (known,))
            base.execute("delete from test where name = ?", (known,))
    contexts: dict[str, int] = {}
    for entry in entries:
        row = base.execute("insert into test(name, seconds) values (?, ?)", (entry["test"], entry["seconds"]))
        contexts[str(entry["context"])] = row.lastrowid or 0
    with closing(sqlite3.connect(data)) as measured:
        rows = measured.execute(
            "select file.path, context.context, numbits from line_bits "
            "join file on file.id = file_id join context on context.id = context_id"
        )
        for path, context, numbits in rows:
            if context in contexts:
                source = _source(base, tree.root, Path(path))
                base.execute("insert or replace into executed values (?, ?, ?)", (source, contexts[context], numbits))


def _source(base: sqlite3.Connection, root: Path, path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    key = (str(path.relative_to(root)), sha256(text.encode()).hexdigest())
    base.execute("insert or ignore into source(file, sha256, text) values (?, ?, ?)", (*key, text))
    return int(base.execute("select id from source where file = ? and sha256 = ?", key).fetchone()[0])


class Covering:
    """Reads which tests execute the lines of the tree at `root`, which may have changed since it was measured."""

    def __init__(self, store: Path, root: Path, within: Iterable[str] = ()) -> None:
        if not store.exists():
            raise SystemExit(f"no record of what tests cover: {store}: run `python -m tests.tools.mutate --measure`")
        self._base, self._root = sqlite3.connect(store), root
        self._within = tuple(path.rstrip("/") for path in within)
        self._by_file: dict[str, list[tuple[CoveringTest, frozenset[int]]]] = {}

    def close(self) -> None:
        """Close the record."""
        self._base.close()

    def of_lines(self, file: str, first: int, last: int, in_function: bool) -> list[CoveringTest]:
        """The tests of a statement, quickest first.

        A statement of a module or class is executed once, by the first test that imports it: all tests of the module's
        functions are its tests, and without any, those of the modules that import it.
        """
        executed = self._executed(file)
        if in_function:
            return sorted(test for test, lines in executed if not lines.isdisjoint(range(first, last + 1)))
        functions = _function_lines((self._root / file).read_text(encoding="utf-8"))
        tests = {test for test, lines in executed if not lines.isdisjoint(functions)}
        if not tests:
            tests = {test for importer in self._importers(file) for test in self._of_functions(importer)}
        return sorted(tests or {test for test, _ in executed})

    def _of_functions(self, file: str) -> set[CoveringTest]:
        functions = _function_lines((self._root / file).read_text(encoding="utf-8"))
        return {test for test, lines in self._executed(file) if not lines.isdisjoint(functions)}

    def _executed(self, file: str) -> list[tuple[CoveringTest, frozenset[int]]]:
        if file not in self._by_file:
            self._by_file[file] = list(self._read(file))
        return self._by_file[file]

    def _read(self, file: str) -> Iterable[tuple[CoveringTest, frozenset[int]]]:
        now = (self._root / file).read_text(encoding="utf-8")
        for source, text in self._base.execute("select id, text from source where file = ?", (file,)).fetchall():
            moved = _moved(text, now)
            rows = self._base.execute(
                "select name, seconds, numbits from executed join test on test.id = test where source = ?", (source,)
            )
            for name, seconds, numbits in rows:
                if (self._within and not name.startswith(self._within)) or not (
                    self._root / name.split("::")[0]
                ).exists():
                    continue
                lines = frozenset(moved[line] for line in numbits_to_nums(numbits) if line in moved)
                yield CoveringTest(seconds, name), lines

    def _importers(self, file: str) -> list[str]:
        """The product files that import a module."""
        path = Path(file).with_suffix("")
        parts = path.parts[1:] if path.parts[0] != "jellybean" else path.parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        files = [
            str(each.relative_to(self._root)) for package in PRODUCT for each in (self._root / package).rglob("*.py")
        ]
        return [
            each
            for each in files
            if each != file and module in _imports((self._root / each).read_text(encoding="utf-8"))
        ]


def _moved(before: str, now: str) -> dict[int, int]:
    """The place of each line that a file still has, from 1."""
    old, new = before.splitlines(), now.splitlines()
    if old == new:
        return {line: line for line in range(1, len(old) + 1)}
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    return {block.a + step + 1: block.b + step + 1 for block in blocks for step in range(block.size)}


def _function_lines(source: str) -> frozenset[int]:
    """The lines of the bodies of functions."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines |= set(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(lines)


def _imports(source: str) -> set[str]:
    """The modules that a file imports, and names of modules imported from packages."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules
