"""Read, validate and write the project documents (YAML), and build the planning problem from them."""

from __future__ import annotations

from jellybean.documents.heldout import HeldOut, load_heldout
from jellybean.documents.multi_workflow import AnyProject, MultiWorkflowProject, load_any_project, written_projects
from jellybean.documents.overrides import override_options
from jellybean.documents.planning_problem.build import build_problem, request_graph, require_current
from jellybean.documents.planning_problem.cuts import build_cuts
from jellybean.documents.project import Project, load_project, machine_notes, read_profiles, require_folder
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.documents.writer import json_schemas, write_profiles

__all__ = [
    "AnyProject",
    "HeldOut",
    "InfrastructureDocument",
    "MultiWorkflowProject",
    "ProfilesDocument",
    "Project",
    "WorkflowDocument",
    "build_cuts",
    "build_problem",
    "json_schemas",
    "load_any_project",
    "load_heldout",
    "load_project",
    "machine_notes",
    "override_options",
    "read_profiles",
    "request_graph",
    "require_current",
    "require_folder",
    "write_profiles",
    "written_projects",
]
