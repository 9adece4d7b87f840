"""How far a run is, how its checkpoint is named, and which checkpoints there are.

Without torch, so that a run that is interrupted while torch is imported can report its position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from jellybean.documents.training.references import RUN_FOLDER

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


def checkpoint_folder(directory: Path) -> Path:
    """The folder of the checkpoints of the project in `directory`."""
    return directory / RUN_FOLDER / "checkpoints"


def checkpoints_in(folder: Path) -> list[tuple[Position, Path]]:
    """(position, folder) of each complete checkpoint, newest first."""
    paths = [(position, path) for path in folder.glob("epoch-*") if (position := Position.of(path.name)) is not None]
    return sorted(paths, reverse=True)


def newest_position(folder: Path) -> Position | None:
    """Position of the newest checkpoint, by its name; None if there is none."""
    return next((position for position, _ in checkpoints_in(folder)), None)
