"""TODOs in YAML documents: a comment `# TODO: ...` is a note; the word TODO in place of a value is an error."""

from __future__ import annotations

import re
from bisect import bisect_right
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
    starts = [start for start, _ in scalars]
    lines = text.split("\n")
    comments: list[TodoComment] = []
    line, counted = 1, 0  # the line of the character `counted`
    for match in _COMMENT.finditer(text):
        before = bisect_right(starts, match.start()) - 1  # scalars are in order, and none is in another
        if before >= 0 and match.start() < scalars[before][1]:
            continue
        line, counted = line + text.count("\n", counted, match.start()), match.start()
        parts = [match[1].strip()]
        for below in (lines[number] for number in range(line, len(lines))):
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
