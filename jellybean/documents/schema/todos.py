"""TODOs in YAML documents: a comment `# TODO: ...` is a note; the word TODO in place of a value is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.tokens import ScalarToken

PLACEHOLDER = "TODO"
_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*TODO\b:?\s*(.*)$", re.MULTILINE)
_CONTINUED = re.compile(r"\s*#\s{2,}(\S.*)")  # a comment line whose text is indented


@dataclass(frozen=True, slots=True)
class TodoComment:
    """A `# TODO` comment with the indented comment lines below it. Lines count from 1."""

    line: int
    last_line: int
    text: str


def todo_comments(text: str) -> tuple[TodoComment, ...]:
    """The `# TODO` comments of a YAML text, in order."""
    if PLACEHOLDER not in text:
        return ()
    scalars = _scalar_spans(text)
    lines = text.split("\n")
    comments: list[TodoComment] = []
    for match in _COMMENT.finditer(text):
        if any(start <= match.start() < end for start, end in scalars):
            continue
        line = text.count("\n", 0, match.start()) + 1
        parts = [match[1].strip()]
        for below in lines[line:]:
            continued = _CONTINUED.fullmatch(below)
            if continued is None or _COMMENT.search(below):
                break
            parts.append(continued[1].strip())
        comments.append(TodoComment(line, line + len(parts) - 1, " ".join(filter(None, parts))))
    return tuple(comments)


def _scalar_spans(text: str) -> list[tuple[int, int]]:
    """(first, last + 1) character of each scalar; none if the text is no YAML."""
    try:
        tokens = YAML(typ="safe", pure=True).scan(text)
        return [(token.start_mark.index, token.end_mark.index) for token in tokens if isinstance(token, ScalarToken)]
    except (YAMLError, ValueError, OverflowError):
        return []
