"""Actions of a pipeline schedule and their text form.

An action has a kind, a stage and a micro-batch, the weight version that it uses (the number of updates of the stage so
far) and, for schedules with several model replicas, the replica ("pipe"). `2F5` is the forward of micro-batch 5 at
stage 2; `2F5@3` uses weight version 3; `2F5~1` runs in the second replica. The text form round-trips.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from jellybean_solver.errors import SolverError


class ActionKind(IntEnum):
    """Kinds of action. Zero-bubble schedules split `BACKWARD` into `INPUT_GRADIENT` and `WEIGHT_GRADIENT`.

    `REDUCE` all-reduces a stage's gradients over its replicas; `UPDATE` applies the accumulated gradient.
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
    """One step of a device. REDUCE and UPDATE carry the last micro-batch included, UPDATE the version it creates."""

    kind: ActionKind
    stage: int
    microbatch: int
    version: int = 0
    pipe: int = 0

    def __str__(self) -> str:
        version = f"@{self.version}" if self.version else ""
        return f"{self.stage}{self.kind.letter}{self.microbatch}{version}" + (f"~{self.pipe}" if self.pipe else "")


_TEXT = re.compile(r"(\d+)([FBIWRU])(\d+)(?:@(\d+))?(?:~(\d+))?")


def parse_action(text: str) -> Action:
    """Parse the text form of an action. SolverError if it is malformed."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise SolverError(f"{text!r} is no action; an action looks like 2F5, 2F5@3 or 2F5@3~1")
    stage, kind, microbatch, version, pipe = found.groups()
    return Action(ActionKind(_LETTERS.index(kind)), int(stage), int(microbatch), int(version or 0), int(pipe or 0))
