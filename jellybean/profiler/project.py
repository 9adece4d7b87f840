"""Builds the workload to profile from a project's documents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from jellybean.bench.heldout import held_out
from jellybean.documents import Project
from jellybean.documents.flow import follow_requests
from jellybean.documents.layout import document_files
from jellybean.documents.planning_problem.model_files import python_ref
from jellybean.documents.schema.infrastructure import WorkerPoolSpec
from jellybean.documents.schema.workflow import VariantSpec
from jellybean.errors import DocumentError, DocumentProblem
from jellybean.profiler.errors import ProfileError, RefusedFunctionError
from jellybean.profiler.measurement_plan import MeasurementPlan
from jellybean.profiler.workload import Model, Step, Workload
from jellybean.user_modules import open_project_folder
from jellybean_agent import AgentError, Device, PythonStep, step_folders, try_device

Value = TypeVar("Value")


def workload_of(project: Project, allow_python: frozenset[str] = frozenset()) -> Workload:
    """The workload of a project. `allow_python`: Python functions that may run here in addition to the built-in steps.

    ProfileError if a variant has no model file, or needs a function that may not run here.
    """
    workflow = project.workflow
    without = [
        f"{operator}.{variant}"
        for operator, spec in workflow.operators.items()
        for variant, model in spec.variants.items()
        if model.python is None and (model.model is None or model.sha256 is None)
    ]
    if without:
        raise ProfileError(
            f"no model file to measure for {', '.join(without)}; give each variant `model:` and `sha256:` in "
            "workflow.yaml, or write profiles.yaml by hand"
        )
    if step_folders(allow_python, [str(project.directory.resolve())]):
        open_project_folder(project.directory)
    flow = follow_requests(workflow, project.infrastructure.sites)
    steps = tuple(
        Step(
            name,
            flow.edges[name],
            tuple(
                _model(project, name, variant, spec, allow_python)
                for variant, spec in workflow.operators[name].variants.items()
            ),
            spec.tensors if (spec := workflow.operators[name].state) is not None else {},
        )
        for name in flow.order
    )
    data = held_out(project)
    references = {name: source.inputs for name, source in workflow.sources.items() if source.inputs is not None}
    return Workload(
        steps,
        data.inputs,
        data.labels,
        data.metric,
        speeds_of(project),
        devices=devices_of(project),
        references=references,
        stream_ids=data.stream_ids,
        labels_of=data.labels_of,
    )


def _model(project: Project, operator: str, variant: str, spec: VariantSpec, allow_python: frozenset[str]) -> Model:
    found = python_ref(project.directory, operator, variant, spec)
    if found is None or found.python is None:
        path, sha256 = project.directory / str(spec.model), str(spec.sha256)
        return Model(operator, variant, path, sha256, names=spec.port_names)
    try:
        step = PythonStep(found.python.function, found.python.arguments, allow_python)
    except AgentError as error:
        raise RefusedFunctionError(f"operator {operator}, variant {variant}: {error}") from error
    return Model(operator, variant, Path(), found.sha256, step, found.python.module_sha256, spec.port_names)


def speeds_of(project: Project) -> dict[str, float]:
    """Worker type -> speed relative to this machine.

    ProfileError if pools of one worker type have different speeds, because they share a profile.
    """
    return _by_type(project, lambda spec: spec.emulated_speed, "of different speed ({:g} and {:g})")


def devices_of(project: Project) -> dict[str, Device]:
    """Worker type -> device. ProfileError if pools of one worker type have different devices."""
    return _by_type(project, lambda spec: spec.worker_device, "with different devices ({} and {})")


def _by_type(project: Project, value_of: Callable[[WorkerPoolSpec], Value], difference: str) -> dict[str, Value]:
    """Worker type -> value of its pools. ProfileError if they differ; `difference` says how, with both values."""
    values: dict[str, Value] = {}
    for pool, spec in project.infrastructure.workers.items():
        worker_type, value = spec.type or pool, value_of(spec)
        if values.setdefault(worker_type, value) != value:
            raise ProfileError(
                f"worker type {worker_type} has pools {difference.format(values[worker_type], value)}; "
                f"give pool {pool} a `type` of its own in infrastructure.yaml"
            )
    return values


def require_devices(project: Project, todo: MeasurementPlan) -> None:
    """DocumentError if models cannot run here on the device of a worker type that is to be measured."""
    types = {entry.worker_type for entry in todo.measure if entry.worker_type}
    file = str(document_files(project.directory)["infrastructure"])
    problems = []
    for pool, spec in project.infrastructure.workers.items():
        if (spec.type or pool) not in types:
            continue
        try:
            try_device(spec.worker_device)
        except AgentError as error:
            problems.append(DocumentProblem(file, None, None, f"workers.{pool}.device", str(error)))
    if problems:
        raise DocumentError(problems)
