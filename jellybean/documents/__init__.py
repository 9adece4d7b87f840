"""Documents as people write them, and the planning problem that they state."""

from __future__ import annotations

from jellybean.documents.build import build_problem
from jellybean.documents.cuts import build_cuts
from jellybean.documents.heldout import HeldOut, load_heldout
from jellybean.documents.project import Project, load_project, require_folder
from jellybean.documents.schema.models import InfrastructureDocument, WorkflowDocument
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.shared import AnyProject, SharedProject, load_any
from jellybean.documents.writer import json_schemas, write_profiles

__all__ = [
    "AnyProject",
    "HeldOut",
    "InfrastructureDocument",
    "ProfilesDocument",
    "Project",
    "SharedProject",
    "WorkflowDocument",
    "build_cuts",
    "build_problem",
    "json_schemas",
    "load_any",
    "load_heldout",
    "load_project",
    "require_folder",
    "write_profiles",
]
