"""Draws lines of a room and one fault for each: the same seed and the same tree give the same faults."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path

from tests.tools.mutate.faults import Fault, candidates_of, is_fault

EQUIVALENT = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fault of one product line. `reason`: why it is equivalent, if it is listed as that."""

    file: str
    fault: Fault
    source: str
    reason: str | None = None

    @property
    def text(self) -> str:
        """The line of the fault, without indentation."""
        return self.source.splitlines()[self.fault.line - 1].strip()

    @property
    def name(self) -> str:
        """File, line and mutation, in one line."""
        return f"{self.file}:{self.fault.line}: {self.fault.mutation}"

    def diff(self) -> str:
        """What the fault changes, as a unified diff with one line of context."""
        before, after = (text.splitlines(keepends=True) for text in (self.source, self.fault.applied(self.source)))
        return "".join(unified_diff(before, after, self.file, self.file, n=1))


@dataclass(frozen=True, slots=True)
class Equivalents:
    """Faults after which the program does the same, by file, text of the line and mutation, each with a reason."""

    reasons: dict[tuple[str, str, str], str]

    @classmethod
    def read(cls, path: Path = EQUIVALENT) -> Equivalents:
        """Read the list. An entry without one of its four keys is a `KeyError`."""
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
        return cls({(entry["file"], entry["line"], entry["mutation"]): entry["reason"] for entry in entries})

    def reason(self, drawn: Drawn) -> str | None:
        """Why a fault is equivalent; None if it is not listed."""
        return self.reasons.get((drawn.file, drawn.text, drawn.fault.mutation))


def draw(root: Path, files: list[str], seed: int, equivalents: Equivalents) -> Iterator[Drawn]:
    """One fault in each line of `files` that has any, lines in a random order that depends on the seed alone.

    A line's place in that order depends on its own text, not on other lines, so that a change elsewhere leaves it.
    """
    lines: list[tuple[str, str, str, list[Fault]]] = []
    for file in files:
        source = (root / file).read_text(encoding="utf-8")
        lines += [(order, file, source, faults) for order, faults in _ordered(file, source, seed)]
    for order, file, source, faults in sorted(lines, key=lambda line: line[0]):
        by_rank = sorted(faults, key=lambda fault: _rank(order, fault.mutation, str(fault.start - faults[0].start)))
        chosen = next((fault for fault in by_rank if is_fault(source, fault)), None)
        if chosen is not None:
            yield Drawn(file, chosen, source, equivalents.reason(Drawn(file, chosen, source)))


def _ordered(file: str, source: str, seed: int) -> Iterator[tuple[str, list[Fault]]]:
    """The faults of each line of a file, and the line's rank."""
    by_line: defaultdict[int, list[Fault]] = defaultdict(list)
    for fault in candidates_of(source):
        by_line[fault.line].append(fault)
    texts, repeats = source.splitlines(), defaultdict[str, int](int)
    for line, faults in sorted(by_line.items()):
        text = texts[line - 1].strip()
        repeats[text] += 1
        yield _rank(str(seed), file, text, str(repeats[text])), faults


def _rank(*parts: str) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()
