"""YAML text to plain values, with the position of every key and value.

Only what JSON could say is read: no anchors, aliases, tags, merge keys or second documents, so a small file
cannot become a large value. Size and depth are limited before anything is built.
Scalars follow YAML 1.2, so `no` and `on` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from jellybean.documents.schema.units import shown
from jellybean.errors import DocumentProblem
from jellybean_agent import describe_error

MAX_BYTES = 2 * 2**20
MAX_DEPTH = 24
_MAX_PROBLEMS = 100

DocPath = tuple[str | int, ...]

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]{1,300}|0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place: a file with line and column from 1, or a `--set` option with neither."""

    file: str
    line: int | None = None
    column: int | None = None


@dataclass
class Tree:
    """What a document says, and where. `keys` and `values` map paths to places; the root's path is empty."""

    file: str
    data: Any = None
    keys: dict[DocPath, Mark] = field(default_factory=dict)
    values: dict[DocPath, Mark] = field(default_factory=dict)
    problems: list[DocumentProblem] = field(default_factory=list)
    unread: set[DocPath] = field(default_factory=set)  # values that were refused; they are None in `data`

    def place(self, path: DocPath, *, key: bool = False) -> Mark:
        """Where the value (or key) at `path` stands; the nearest enclosing one that exists when it does not."""
        for length in range(len(path), -1, -1):
            found = self.keys.get(path[:length]) if key or length < len(path) else None
            found = found or self.values.get(path[:length])
            if found is not None:
                return found
        return Mark(self.file, 1, 1)

    def problem(self, path: DocPath, message: str, hint: str = "", *, key: bool = False) -> DocumentProblem:
        """A problem at `path`."""
        mark = self.place(path, key=key)
        return DocumentProblem(mark.file, mark.line, mark.column, dotted(path), message, hint)

    def add(self, path: DocPath, message: str, hint: str = "", *, key: bool = False) -> None:
        """Remember a problem at `path`."""
        self.problems.append(self.problem(path, message, hint, key=key))


def dotted(path: DocPath) -> str:
    """The path as `--set` takes it."""
    return ".".join(str(part) for part in path)


def read_file(path: Path) -> Tree:
    """The tree of a YAML file. What is wrong stands in `problems`; `data` is None when nothing could be read."""
    tree = Tree(str(path))
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "there is no such file" if missing else f"cannot be read: {describe_error(error)}"
        tree.add((), reason, _missing_hint(path))
        return tree
    if len(raw) > MAX_BYTES:
        tree.add((), f"the file is larger than {MAX_BYTES // 2**20} MiB", "a document is written by people; split it")
        return tree
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        tree.values[()] = Mark(tree.file, line, column)
        tree.add((), f"byte 0x{raw[error.start]:02x} is no UTF-8", "save the file as UTF-8")
        return tree
    return read_text(text, tree.file)


def read_text(text: str, file: str) -> Tree:
    """The tree of YAML text; `file` stands in its places."""
    tree = Tree(file)
    directive = re.search(r"(?m)^%", text)
    builder = _Builder(tree, text.count("\n", 0, directive.start()) + 1 if directive else 1)
    try:
        for event in _events(text):
            if not builder.take(event):
                break
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        tree.values[()] = Mark(file, mark.line + 1, mark.column + 1) if mark else Mark(file, 1, 1)
        message, hint = _syntax(error)
        tree.problems.append(tree.problem((), message, hint))
        tree.data = None
    except ReaderError as error:
        before = text[: error.position]
        tree.values[()] = Mark(file, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        tree.add((), f"character U+{ord(text[error.position]):04X} is not allowed", "remove it")
        tree.data = None
    except (YAMLError, ValueError, OverflowError, LookupError) as error:
        # The parser lets a few of Python's own errors through, such as chr() of an escape beyond Unicode.
        tree.values[()] = builder.last
        tree.add((), f"cannot be read as YAML: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        tree.data = None
    if tree.data is None and not tree.problems:
        tree.add((), "the document is empty", "see `jellybean init` for an example to start from")
    return tree


def _events(text: str) -> Iterator[Event]:
    yield from YAML(typ="safe", pure=True).parse(text)


def _missing_hint(path: Path) -> str:
    if path.name == "profiles.yaml":
        return f"run: jellybean profile {path.parent}"
    return "`jellybean init` copies an example to start from"


def _syntax(error: MarkedYAMLError) -> tuple[str, str]:
    problem = str(error.problem or error.context or "not YAML")
    if "'\\t'" in problem:
        return "a tab cannot indent YAML", "use spaces"
    if "mapping values are not allowed" in problem:
        return "a second ':' in one line", "quote the text, or begin a new line"
    if "could not find expected ':'" in problem:
        return "a key without ':'", "write `key: value`"
    context = f" ({error.context})" if error.context and error.problem else ""
    return f"not YAML: {problem}{context}", ""


@dataclass
class _Frame:
    """An open map or list. `key` is the key whose value comes next; None: a key comes next (or it is a list)."""

    value: dict[str, Any] | list[Any]
    path: DocPath
    key: str | None = None
    skip: bool = False  # the pending key is not usable: read its value, keep nothing


class _Builder:
    """Builds a tree from parser events without recursion, so depth is bounded by the check and not by the stack."""

    def __init__(self, tree: Tree, directive_line: int) -> None:
        self.tree = tree
        self._directive_line = directive_line
        self.last = Mark(tree.file, 1, 1)
        self._stack: list[_Frame] = []
        self._documents = 0

    def take(self, event: Event) -> bool:
        """Build on; False when reading should stop."""
        if event.start_mark is not None:
            self.last = Mark(self.tree.file, event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, DocumentStartEvent):
            return self._document(event)
        if isinstance(event, MappingEndEvent | SequenceEndEvent):
            self._stack.pop()
        elif isinstance(event, NodeEvent):
            return self._node(event)
        return len(self.tree.problems) < _MAX_PROBLEMS

    def _document(self, event: DocumentStartEvent) -> bool:
        self._documents += 1
        if self._documents > 1:
            self._refuse("a second document in one file", "keep one document per file; remove `---`")
            return False
        if event.version or event.tags:
            self.last = Mark(self.tree.file, self._directive_line, 1)
            self._refuse("%YAML and %TAG lines are not read", "remove them; documents are YAML 1.2")
        return True

    def _node(self, event: NodeEvent) -> bool:
        if isinstance(event, AliasEvent):
            self._refuse(f"alias *{event.anchor}: anchors and aliases are not read", "write the value out")
        elif event.anchor is not None:
            self._refuse(f"anchor &{event.anchor}: anchors and aliases are not read", "remove it")
        if (tag := getattr(event, "tag", None)) is not None:
            self._refuse(f"tag {shown(str(tag))}: tags are not read", "remove it")
        value = self._value(event)
        frame = self._stack[-1] if self._stack else None
        path: DocPath = ()
        if frame is not None and isinstance(frame.value, dict) and frame.key is None and not frame.skip:
            return self._key(frame, event, value)
        if frame is None:
            self.tree.data = value
        elif isinstance(frame.value, list):
            path = (*frame.path, len(frame.value))
            frame.value.append(value)
        else:
            path = (*frame.path, frame.key or "")
            if not frame.skip:
                frame.value[frame.key or ""] = value
            frame.key, frame.skip = None, False
        self.tree.values.setdefault(path, self.last)
        if isinstance(event, AliasEvent):
            self.tree.unread.add(path)
        return self._open(value, path)

    def _key(self, frame: _Frame, event: NodeEvent, value: object) -> bool:
        if not isinstance(event, ScalarEvent):
            self._refuse("a key must be text, not a map, list or alias", "write `name: value`")
            frame.skip = True
            return self._open(value, (*frame.path, "?")) if isinstance(value, dict | list) else True
        name = event.value
        path = (*frame.path, name)
        if event.implicit[0] and name == "<<":
            self._refuse("merge keys (<<) are not read", "write the values out")
            frame.skip = True
        elif not name:
            self._refuse("a key is empty", "write `name: value`")
            frame.skip = True
        elif isinstance(frame.value, dict) and name in frame.value:
            first = self.tree.keys[path]
            self._refuse(f"duplicate key {shown(name)}, first in line {first.line}", "keep one of them", path)
            frame.skip = True
        else:
            self.tree.keys[path] = self.last
        frame.key = name
        return True

    def _open(self, value: object, path: DocPath) -> bool:
        if isinstance(value, dict | list):
            self._stack.append(_Frame(value, path))
            if len(self._stack) > MAX_DEPTH:
                self._refuse(f"nested deeper than {MAX_DEPTH} levels", "no document needs that", ())
                self.tree.data = None
                return False
        return True

    def _refuse(self, message: str, hint: str, path: DocPath | None = None) -> None:
        if path is None:
            frame = self._stack[-1] if self._stack else None
            path = () if frame is None else (*frame.path, frame.key) if frame.key is not None else frame.path
        mark = self.last
        problem = DocumentProblem(mark.file, mark.line, mark.column, dotted(path), message, hint)
        self.tree.problems.append(problem)

    def _value(self, event: NodeEvent) -> Any:
        if isinstance(event, MappingStartEvent):
            return {}
        if isinstance(event, SequenceStartEvent):
            return []
        if isinstance(event, ScalarEvent):
            return scalar(event.value) if event.implicit[0] else event.value
        return None


def scalar(text: str) -> Any:
    """A plain scalar's value under YAML 1.2's core schema."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text, 0 if text[:2] in {"0o", "0x"} else 10)
    if _FLOAT.fullmatch(text):
        return float(text)
    if special := _SPECIAL.fullmatch(text):
        return float("nan") if special[3] else float(f"{special[1]}inf")
    return text
