"""How far a run is, and how its checkpoint is named."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"epoch-(\d+)(?:-update-(\d+))?")


@dataclass(frozen=True, order=True)
class Position:
    """`epochs`: epochs done. `updates`: updates done of the epoch that follows; 0 between two epochs."""

    epochs: int
    updates: int = 0

    @property
    def name(self) -> str:
        """Name of the checkpoint's folder: epoch-2, or epoch-2-update-300 in the middle of the third."""
        return f"epoch-{self.epochs}" + (f"-update-{self.updates}" if self.updates else "")

    @staticmethod
    def of(name: str) -> Position | None:
        """The position of a folder's name; None if it is no checkpoint's."""
        match = _NAME.fullmatch(name)
        return Position(int(match[1]), int(match[2] or 0)) if match else None

    def __str__(self) -> str:
        return f"update {self.updates} of epoch {self.epochs + 1}" if self.updates else f"epoch {self.epochs}"
