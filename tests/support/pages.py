"""The pages of the documentation, and what they name in code: spans, blocks and commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.support.paths import DOCS, EXAMPLES, ROOT

_INDENTED = re.compile(r"^ {4}(.*)$", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_COMMAND = re.compile(
    r"(?:^|&& |; |\| |\$ )\s*(?:\.venv/bin/)?(jellybean(?:-agent)?|python -m [\w.]+|make)(?![\w/.-])([^#&;|\n]*)"
)


@dataclass(frozen=True)
class Page:
    """One page of Markdown."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """The text without its indented blocks."""
        return _INDENTED.sub("", self.text)

    @cached_property
    def code(self) -> tuple[str, ...]:
        """Code spans, each in one line, and lines of blocks."""
        spans = [" ".join(span.split()) for span in _SPAN.findall(self.prose)]
        return (*spans, *_INDENTED.findall(self.text))

    @cached_property
    def commands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Commands in code, as program and words: `("jellybean", ("plan", "DIR"))`."""
        code = [line.replace("\\|", "|") for line in self.code]
        return tuple(
            (match[1], tuple(match[2].split())) for line in code for match in _COMMAND.finditer(line.split(" # ")[0])
        )

    def words(self, pattern: str) -> set[str]:
        """What a regular expression finds in code."""
        return {word for line in self.code for word in re.findall(pattern, line)}


PAGES = tuple(Page(path) for path in sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md"), *EXAMPLES.glob("*/README.md")]))
