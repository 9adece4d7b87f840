"""Where JellyBean keeps what belongs to a project but is no document of it."""

from __future__ import annotations

from pathlib import Path

STATE_FOLDER = ".jellybean"


def state_folder(directory: Path) -> Path:
    """DIR/.jellybean, made when missing, for its owner alone: logs and held-out answers may be private."""
    folder = directory / STATE_FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
