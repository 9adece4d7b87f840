"""What a device does in a pipeline schedule, and its text.

An action is a kind, a stage and a micro-batch. It names the weight version that it computes with (how many updates the
stage's weights had) and, where a model is held in several copies, the pipe. `2F5` is the forward of micro-batch 5
through stage 2; `2F5@3` with the weights after 3 updates; `2F5~1` in the second copy. The text round-trips.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from jellybean_solver.errors import SolverError


class Kind(IntEnum):
    """`BACKWARD` is both gradients at once; zero-bubble schedules run `INPUT_GRADIENT` and `WEIGHT_GRADIENT` apart.

    `REDUCE` sums a stage's gradients over its copies; `UPDATE` adds what was accumulated to the latest weights.
    """

    FORWARD = 0
    BACKWARD = 1
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3
    REDUCE = 4
    UPDATE = 5

    @property
    def letter(self) -> str:
        return _LETTERS[self]


_LETTERS = "FBIWRU"


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a device. REDUCE and UPDATE name the last micro-batch that they count, UPDATE its new version."""

    kind: Kind
    stage: int
    microbatch: int
    version: int = 0
    pipe: int = 0

    def __str__(self) -> str:
        version = f"@{self.version}" if self.version else ""
        return f"{self.stage}{self.kind.letter}{self.microbatch}{version}" + (f"~{self.pipe}" if self.pipe else "")


_TEXT = re.compile(r"(\d+)([FBIWRU])(\d+)(?:@(\d+))?(?:~(\d+))?")


def parse_action(text: str) -> Action:
    """The action of a text. SolverError when it is none."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise SolverError(f"{text!r} is no action; an action looks like 2F5, 2F5@3 or 2F5@3~1")
    stage, kind, microbatch, version, pipe = found.groups()
    return Action(Kind(_LETTERS.index(kind)), int(stage), int(microbatch), int(version or 0), int(pipe or 0))
