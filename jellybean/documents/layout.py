"""Where the documents of a project stand."""

from __future__ import annotations

from pathlib import Path

WORKFLOW_FILE = "workflow.yaml"
INFRASTRUCTURE_FILE = "infrastructure.yaml"
PROFILES_FILE = "profiles.yaml"
WORKFLOWS_FOLDER = "workflows"


def files_of(directory: Path) -> dict[str, Path]:
    """The documents of one workflow's project; the fleet may be that of all workflows beside it."""
    fleet = shared_fleet(directory)
    return {
        "workflow": directory / WORKFLOW_FILE,
        "infrastructure": directory / INFRASTRUCTURE_FILE if fleet is None else fleet,
        "profiles": directory / PROFILES_FILE,
    }


def shared_fleet(directory: Path) -> Path | None:
    """The infrastructure that a workflow's folder shares with others: that of DIR for DIR/workflows/NAME."""
    if (directory / INFRASTRUCTURE_FILE).exists():
        return None
    near = directory if directory.parent.name == WORKFLOWS_FOLDER else directory.resolve()
    file = near.parent.parent / INFRASTRUCTURE_FILE
    return file if near.parent.name == WORKFLOWS_FOLDER and file.exists() else None


def is_shared(directory: Path) -> bool:
    """Whether a folder holds several workflows on one fleet."""
    return bool(workflow_folders(directory))


def workflow_folders(directory: Path) -> dict[str, Path]:
    """The folders of the workflows that share a fleet, by name; none in a project of one workflow."""
    try:
        found = sorted(path.parent for path in (directory / WORKFLOWS_FOLDER).glob(f"*/{WORKFLOW_FILE}"))
    except OSError:
        return {}
    return {folder.name: folder for folder in found}
