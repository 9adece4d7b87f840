"""User errors with advice; re-exports the solver's errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from jellybean_solver import JellyBeanError, OutOfTimeError, SolverError

__all__ = [
    "DocumentError",
    "DocumentProblem",
    "InfeasibleError",
    "InputError",
    "JellyBeanError",
    "OutOfTimeError",
    "SolverError",
    "StaleProfilesError",
]

_MAX_LINES = 6  # maximum number of line numbers that are listed for a repeated problem
_DOCUMENTS = ("workflow.yaml", "infrastructure.yaml", "profiles.yaml")


@dataclass(frozen=True, slots=True)
class DocumentProblem:
    """One problem in a document.

    `file` is a path, or the text of a `--set` option (then there is no line). Lines and columns count from 1. `path` is
    in the notation of `--set`: `operators.read.inputs.0.from`.
    """

    file: str
    line: int | None
    column: int | None
    path: str
    message: str
    hint: str = ""

    def __post_init__(self) -> None:
        """Escape unprintable characters, so that the problem is one printable line."""
        for name in ("file", "path", "message", "hint"):
            text = getattr(self, name)
            if not text.isprintable():
                object.__setattr__(self, name, "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}:{self.column or 1}"
        path = f"{self.path}: " if self.path else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{where}: {path}{self.message}{hint}"

    def to_dict(self) -> dict[str, Any]:
        """The problem as JSON values."""
        return asdict(self)


class DocumentError(JellyBeanError):
    """Invalid documents. `problems` has all problems: those of the workflow first, ordered by line.

    In the message, a problem that occurs on several lines of a file appears once, with its line numbers.
    """

    def __init__(self, problems: Iterable[DocumentProblem]) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=_order))
        alike: dict[tuple[str, str, str], list[DocumentProblem]] = {}
        for problem in self.problems:
            alike.setdefault((problem.file, problem.message, problem.hint), []).append(problem)
        super().__init__("\n".join(_merge_repeated(group) for group in alike.values()))


class InputError(JellyBeanError):
    """A file or value given on the command line is missing or cannot be used."""


class StaleProfilesError(DocumentError):
    """Profiles that were measured with other models, data or speeds. `next_step`: the sentence after the problems.

    `stale`: the changes with all their entries, as JSON values.
    """

    def __init__(self, problems: Iterable[DocumentProblem], next_step: str, stale: Iterable[dict[str, Any]]) -> None:
        super().__init__(problems)
        self.stale = tuple(stale)
        self.args = (f"{self}\n{next_step}",)


class InfeasibleError(JellyBeanError):
    """No plan meets the targets. `reasons` name the binding requirements and the nearest feasible values.

    `note`: a sentence that says that the existing plan.json was kept.
    """

    def __init__(self, reasons: Iterable[str], note: str = "") -> None:
        self.reasons, self.note = tuple(reasons), note
        lines = ["no plan meets the targets", *(f"  - {reason}" for reason in self.reasons)]
        super().__init__("\n".join([*lines, note] if note else lines))


def _merge_repeated(alike: list[DocumentProblem]) -> str:
    """Text of the first of several equal problems, with the line numbers of the others."""
    lines = list(dict.fromkeys(problem.line for problem in alike if problem.line not in (None, alike[0].line)))
    if not lines:
        return "\n".join(str(problem) for problem in alike)
    shown = ", ".join(str(line) for line in lines[:_MAX_LINES])
    more = f" and {len(lines) - _MAX_LINES} more" if len(lines) > _MAX_LINES else ""
    return f"{alike[0]} (also in line{'s' * (len(lines) > 1)} {shown}{more})"


def _order(problem: DocumentProblem) -> tuple[int, str, int, int, str]:
    name = problem.file.replace("\\", "/").rpartition("/")[2]
    rank = _DOCUMENTS.index(name) if name in _DOCUMENTS else -1  # the workflow comes first
    return rank, problem.file, problem.line or 0, problem.column or 0, problem.message
