"""The folder DIR/.jellybean with the state of a project: logs, keys, certificates, report store."""

from __future__ import annotations

from pathlib import Path

STATE_FOLDER = ".jellybean"
LEDGER_FILE = "ledger.db"  # in it


def state_folder(directory: Path) -> Path:
    """DIR/.jellybean; created with access for its owner only, because logs and held-out data may be private."""
    folder = directory / STATE_FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
