"""Read YAML as plain values with the source position of every key and value.

Only the JSON subset of YAML is accepted: no anchors, aliases, tags, merge keys or second documents, so that a small
file cannot expand into a large value. Size and nesting depth are limited. Scalars follow YAML 1.2: `no` and `on` are
text.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
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

from jellybean.documents.layout import profile_command
from jellybean.documents.schema.todos import PLACEHOLDER, todo_comments
from jellybean.errors import DocumentProblem
from jellybean.quantities import quoted
from jellybean.unit_hints import number_readings
from jellybean_agent import describe_error, open_regular
from jellybean_solver import size_text

MAX_BYTES = 2 * 2**20
MAX_DEPTH = 24
LARGE = 2**15  # characters; a smaller text takes the parser in Python at most a quarter of a second
_MAX_PROBLEMS = 100
_KEPT_TEXTS, _KEPT_CHARACTERS = 8, 2**16  # parsed texts that are kept, and the longest of them: at most 32 MB in all

DocPath = tuple[str | int, ...]

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]{1,300}|0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True)
class Mark:
    """A source position: a file with line and column counted from 1, or a `--set` option without line and column."""

    file: str
    line: int | None = None
    column: int | None = None


@dataclass
class Tree:
    """A parsed document.

    `keys` and `values` map paths to the positions of keys and values; the root has the empty path.
    """

    file: str
    data: Any = None
    keys: dict[DocPath, Mark] = field(default_factory=dict)
    values: dict[DocPath, Mark] = field(default_factory=dict)
    problems: list[DocumentProblem] = field(default_factory=list)
    unread: set[DocPath] = field(default_factory=set)  # paths of rejected values; these are None in `data`

    def position(self, path: DocPath, *, key: bool = False) -> Mark:
        """Position of the value (or the key) at `path`; if it does not exist, of the nearest enclosing value."""
        for length in range(len(path), -1, -1):
            mark = self.keys.get(path[:length]) if key or length < len(path) else None
            mark = mark or self.values.get(path[:length])
            if mark is not None:
                return mark
        return Mark(self.file, 1, 1)

    def problem(self, path: DocPath, message: str, hint: str = "", *, key: bool = False) -> DocumentProblem:
        """Build a problem located at `path`."""
        mark = self.position(path, key=key)
        return DocumentProblem(mark.file, mark.line, mark.column, dotted(path), message, hint)

    def add(self, path: DocPath, message: str, hint: str = "", *, key: bool = False) -> None:
        """Record a problem at `path`."""
        self.problems.append(self.problem(path, message, hint, key=key))

    def add_conflict(self, path: DocPath, keys: Sequence[str], message: str, hint: str = "") -> None:
        """Record that keys of the map at `path` contradict each other.

        Located at the options that set them, otherwise at the last of them in the file.
        """
        paths = [(*path, *key.split(".")) for key in keys]
        marks = [self.position(one, key=True) for one in paths if one[: len(path) + 1] in self.keys]
        options = dict.fromkeys(mark.file for mark in marks if mark.line is None)
        if not marks:
            self.add(path, message, hint)
            return
        mark = Mark(" ".join(options)) if options else max(marks, key=lambda one: (one.line or 0, one.column or 0))
        self.problems.append(DocumentProblem(mark.file, mark.line, mark.column, dotted(path), message, hint))


def dotted(path: DocPath) -> str:
    """The path in the notation of `--set`."""
    return ".".join(str(part) for part in path)


def read_file(path: Path) -> Tree:
    """Read a YAML file. Errors are in `problems`; `data` is None if the file cannot be parsed."""
    tree = Tree(str(path))
    try:
        with open_regular(path) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "file not found" if missing else f"cannot be read: {describe_error(error)}"
        tree.add((), reason, _missing_hint(path))
        return tree
    if len(raw) > MAX_BYTES:
        tree.add((), f"the file is larger than {size_text(MAX_BYTES)}", "split the document")
        return tree
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        tree.values[()] = Mark(tree.file, line, column)
        tree.add((), f"byte 0x{raw[error.start]:02x} is not valid UTF-8", "save the file as UTF-8")
        return tree
    return read_text(text, tree.file)


def read_text(text: str, file: str) -> Tree:
    """Parse YAML text; `file` is the file name of its source positions."""
    tree = Tree(file)
    directive = re.search(r"(?m)^%", text)
    builder = _Builder(tree, text.count("\n", 0, directive.start()) + 1 if directive else 1)
    try:
        for event in _RECENT.events(text):
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
        # ruamel.yaml lets some Python errors through, for example that of chr() for an escape beyond Unicode.
        tree.values[()] = builder.last
        tree.add((), f"cannot be read as YAML: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        tree.data = None
    if tree.data is None and not tree.problems:
        tree.add((), "the document is empty", "`jellybean init` copies an example to start from")
    if PLACEHOLDER in text and isinstance(tree.data, dict | list):
        comments = todo_comments(text)
        below = {comment.last_line + 1: comment.text for comment in comments}
        _reject_placeholders(tree, tree.data, (), below | {comment.line: comment.text for comment in comments})
    return tree


def _reject_placeholders(tree: Tree, value: Any, path: DocPath, comments: Mapping[int, str]) -> None:
    """Report values that are still TODO; in `data` they become None. `comments`: line -> comment beside or above it."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        place = (*path, key)
        if isinstance(item, dict | list):
            _reject_placeholders(tree, item, place, comments)
        elif item == PLACEHOLDER:
            line = tree.position(place).line or 0
            tree.add(place, "is still to be written (TODO)", comments.get(line, ""))
            tree.unread.add(place)
            value[key] = None


class _RecentTexts:
    """The events of the texts that were parsed last: a command reads a project several times, an operator for ever.

    A text with an error, or one that its reader left before the end, is parsed anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # documents are read in several threads
        self._events: OrderedDict[str, Sequence[Event]] = OrderedDict()  # the least recently used first

    def events(self, text: str) -> Iterator[Event]:
        """The events of a YAML text, in order."""
        with self._lock:
            known = self._events.pop(text, None)
            if known is not None:
                self._events[text] = known
        if known is not None:
            yield from known
            return
        if len(text) >= LARGE and (plain := _events_of_large_text(text)) is not None:
            yield from plain
            return
        parsed: list[Event] = []
        for event in YAML(typ="safe", pure=True).parse(text):
            parsed.append(event)
            yield event
        if len(text) <= _KEPT_CHARACTERS:
            with self._lock:
                self._events[text] = parsed
                while len(self._events) > _KEPT_TEXTS:
                    self._events.popitem(last=False)


_RECENT = _RecentTexts()


def _events_of_large_text(text: str) -> Iterator[Event] | None:
    """The events of a large plain text; None for one that is left to the parser in Python."""
    from jellybean.documents.schema.large_text import plain_events  # imports libyaml, which small texts do without

    return plain_events(text)


def _missing_hint(path: Path) -> str:
    if path.name == "profiles.yaml":
        return f"run: {profile_command(path)}"
    return "`jellybean init` copies an example to start from"


def _syntax(error: MarkedYAMLError) -> tuple[str, str]:
    problem = str(error.problem or error.context or "not YAML")
    if "'\\t'" in problem:
        return "YAML cannot be indented with a tab", "use spaces"
    if "mapping values are not allowed" in problem:
        return "a second ':' on one line", "quote the text, or start a new line"
    if "could not find expected ':'" in problem:
        return "a key without ':'", "write `key: value`"
    context = f" ({error.context})" if error.context and error.problem else ""
    return f"not YAML: {problem}{context}", ""


@dataclass
class _Frame:
    """A map or list whose end was not read yet.

    `key`: in a map, the key whose value comes next, or None if a key comes next; in a list always None.
    """

    value: dict[str, Any] | list[Any]
    path: DocPath
    key: str | None = None
    skip: bool = False  # the pending key is invalid, so its value is parsed and discarded
    last_path: DocPath = ()  # of the value before the key that comes next
    last: ScalarEvent | None = None  # in a map, the value before the key that comes next, if that is a scalar
    key_event: ScalarEvent | None = None  # that of `key`


class _Builder:
    """Builds a tree from parser events without recursion, so that deep nesting cannot overflow the stack."""

    def __init__(self, tree: Tree, directive_line: int) -> None:
        self.tree = tree
        self._directive_line = directive_line
        self.last = Mark(tree.file, 1, 1)
        self._stack: list[_Frame] = []
        self._documents = 0

    def take(self, event: Event) -> bool:
        """Process one event; False stops the parser."""
        if event.start_mark is not None:
            self.last = Mark(self.tree.file, event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, DocumentStartEvent):
            return self._document(event)
        if isinstance(event, MappingEndEvent | SequenceEndEvent):
            self._stack.pop()
        elif isinstance(event, NodeEvent) and not self._node(event):
            return False
        return len(self.tree.problems) < _MAX_PROBLEMS

    def _document(self, event: DocumentStartEvent) -> bool:
        self._documents += 1
        if self._documents > 1:
            self._reject("a second document in one file", "keep one document per file; remove `---`")
            return False
        if event.version or event.tags:
            self.last = Mark(self.tree.file, self._directive_line, 1)
            self._reject("%YAML and %TAG directives are not supported", "remove them; documents are YAML 1.2")
        return True

    def _node(self, event: NodeEvent) -> bool:
        if isinstance(event, AliasEvent):
            self._reject(f"alias *{event.anchor}: anchors and aliases are not supported", "write the value out")
        elif event.anchor is not None:
            self._reject(f"anchor &{event.anchor}: anchors and aliases are not supported", "remove it")
        if (tag := getattr(event, "tag", None)) is not None:
            self._reject(f"tag {quoted(str(tag))}: tags are not supported", "remove it")
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
            self._set(frame, event, value)
        self.tree.values.setdefault(path, self.last)
        if isinstance(event, AliasEvent):
            self.tree.unread.add(path)
        return self._open(value, path)

    def _set(self, frame: _Frame, event: NodeEvent, value: object) -> None:
        """Set the value of the pending key of a map."""
        is_missing = isinstance(event, ScalarEvent) and not event.value and event.implicit[0]
        if is_missing and isinstance(frame.value, dict) and (written := _comma_number(frame.last, frame.key_event)):
            texts = " or ".join(f"{number} {unit}".rstrip() for number, unit in number_readings(written))
            hint = f"a comma ends a value here: write {texts}, with a point before decimals"
            self._reject(f"{quoted(written)} has a comma in its number", hint, frame.last_path)
            frame.value[str(frame.last_path[-1])] = None
            self.tree.unread.add(frame.last_path)
        elif not frame.skip:
            frame.value[frame.key or ""] = value  # type: ignore[call-overload]  # a map's frame
            frame.last_path = (*frame.path, frame.key or "")
        frame.last = event if isinstance(event, ScalarEvent) and not frame.skip else None
        frame.key, frame.key_event, frame.skip = None, None, False

    def _key(self, frame: _Frame, event: NodeEvent, value: object) -> bool:
        if not isinstance(event, ScalarEvent):
            self._reject("a key must be text, not a map, list or alias", "write `name: value`")
            frame.skip = True
            return self._open(value, (*frame.path, "?")) if isinstance(value, dict | list) else True
        name = event.value
        path = (*frame.path, name)
        if event.implicit[0] and name == "<<":
            self._reject("merge keys (<<) are not supported", "write the values out")
            frame.skip = True
        elif not name:
            self._reject("a key is empty", "write `name: value`")
            frame.skip = True
        elif isinstance(frame.value, dict) and name in frame.value:
            first = self.tree.keys[path]
            self._reject(f"duplicate key {quoted(name)}, first on line {first.line}", "keep one of them", path)
            frame.skip = True
        else:
            self.tree.keys[path] = self.last
        frame.key, frame.key_event = name, event
        return True

    def _open(self, value: object, path: DocPath) -> bool:
        if isinstance(value, dict | list):
            self._stack.append(_Frame(value, path))
            if len(self._stack) > MAX_DEPTH:
                self._reject(f"nested deeper than {MAX_DEPTH} levels", "reduce the nesting", ())
                self.tree.data = None
                return False
        return True

    def _reject(self, message: str, hint: str, path: DocPath | None = None) -> None:
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


def _comma_number(before: ScalarEvent | None, key: ScalarEvent | None) -> str:
    """A number with a comma that YAML divided into a value and a key, with its unit; empty if these are none.

    In `{price: 0,05 USD/h}` the price is 0 and `05 USD/h` a key: whoever adds a unit to the 0 gets a free worker.
    """
    if before is None or key is None or before.end_mark is None or key.start_mark is None:
        return ""
    written = f"{before.value},{key.value}"
    is_next = key.start_mark.index == before.end_mark.index + 1
    return written if is_next and re.fullmatch(r"[0-9.]+", before.value) and number_readings(written) else ""


def scalar(text: str) -> Any:
    """The value of an unquoted scalar in the core schema of YAML 1.2."""
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
