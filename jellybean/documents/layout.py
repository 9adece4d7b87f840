"""File names and folders of a project's documents."""

from __future__ import annotations

import shlex
from pathlib import Path

from jellybean.folders import require_no_link

WORKFLOW_FILE = "workflow.yaml"
INFRASTRUCTURE_FILE = "infrastructure.yaml"
PROFILES_FILE = "profiles.yaml"
WORKFLOWS_FOLDER = "workflows"


def document_files(directory: Path) -> dict[str, Path]:
    """Document name -> file of a one-workflow project; the infrastructure file may be shared with other workflows."""
    shared = shared_infrastructure_file(directory)
    return {
        "workflow": directory / WORKFLOW_FILE,
        "infrastructure": directory / INFRASTRUCTURE_FILE if shared is None else shared,
        "profiles": directory / PROFILES_FILE,
    }


def profile_command(file: str | Path) -> str:
    """The command that profiles the project of a workflow.yaml or profiles.yaml, for hints.

    Of one of several workflows it is that of all, which measures only what is missing or stale.
    """
    return f"jellybean profile {shlex.quote(str(project_folder(Path(file).parent)))}"


def project_folder(folder: Path) -> Path:
    """The project of a workflow's folder: DIR for DIR/workflows/NAME without a fleet of its own, else the folder."""
    is_one_of_several = folder.parent.name == WORKFLOWS_FOLDER and shared_infrastructure_file(folder) is not None
    return folder.parent.parent if is_one_of_several else folder


def shared_infrastructure_file(directory: Path) -> Path | None:
    """The file DIR/infrastructure.yaml if `directory` is DIR/workflows/NAME and has no such file itself, else None."""
    if (directory / INFRASTRUCTURE_FILE).exists():
        return None
    near = directory if directory.parent.name == WORKFLOWS_FOLDER else directory.resolve()
    file = near.parent.parent / INFRASTRUCTURE_FILE
    return file if near.parent.name == WORKFLOWS_FOLDER and file.exists() else None


def holds_several_workflows(directory: Path) -> bool:
    """True if the folder has workflows/NAME/workflow.yaml, the layout of several workflows on one fleet."""
    return bool(workflow_folders(directory))


def workflow_folders(directory: Path) -> dict[str, Path]:
    """Workflow name -> folder in a multi-workflow project; empty in a one-workflow project.

    InputError for a folder that is a link out of the project: commands write into these folders.
    """
    try:
        folders = sorted(path.parent for path in (directory / WORKFLOWS_FOLDER).glob(f"*/{WORKFLOW_FILE}"))
    except OSError:
        return {}
    for folder in folders:
        require_no_link(folder / WORKFLOW_FILE, directory, at_end=False)
    return {folder.name: folder for folder in folders}
