"""Build the planning problem from validated documents."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from jellybean.documents.flow import Flow, follow_requests
from jellybean.documents.layout import PROFILES_FILE, WORKFLOW_FILE, WORKFLOWS_FOLDER, profile_command
from jellybean.documents.multi_workflow import AnyProject, MultiWorkflowProject
from jellybean.documents.provenance.content import function_digest
from jellybean.documents.python_modules import function_source, where_to_put_it
from jellybean.documents.schema.infrastructure import InfrastructureDocument, WorkerPoolSpec
from jellybean.documents.schema.profiles import (
    AccuracyProfile,
    BatchProfile,
    ProfilesDocument,
    VariantProfile,
    latency_statistic,
)
from jellybean.documents.schema.reader import dotted
from jellybean.documents.schema.workflow import VariantSpec, WorkflowDocument
from jellybean.documents.stream_capacity import with_whole_streams
from jellybean.errors import DocumentError, DocumentProblem, InputError, StaleProfilesError
from jellybean_agent import AgentError, PortNames, data_names, describe_error, hash_model
from jellybean_protos.plan_format import canonical_json
from jellybean_solver import (
    AccuracyModel,
    AccuracyRow,
    EndToEnd,
    Independent,
    Link,
    ModelFile,
    ModelPorts,
    ModelRef,
    Operator,
    PerOperator,
    Pool,
    Problem,
    PythonRef,
    ServiceTime,
    Slo,
    Source,
    Times,
    Variant,
    best_batch,
    combine_workflows,
    quantile_mean,
    unbatched,
)


def build_problem(project: AnyProject) -> Problem:
    """Build the solver's problem. DocumentError if profiles are missing or the request rates are inconsistent.

    StaleProfilesError if profiles no longer match the files, unless the project was loaded to accept them.
    """
    require_current(project)
    if isinstance(project, MultiWorkflowProject):
        parts = {name: _with_model_paths(build_problem(part), name) for name, part in project.workflows.items()}
        return combine_workflows(project.name, parts, project.infrastructure.limits.budget_usd_per_h)
    workflow, infrastructure = project.workflow, project.infrastructure
    if project.profiles is None:
        path = project.directory / PROFILES_FILE
        hint = f"run: {profile_command(path)}"
        raise DocumentError([DocumentProblem(str(path), 1, 1, "", "planning needs profiles", hint)])
    flow = follow_requests(workflow, infrastructure.sites)
    if flow.problems:
        file = str(project.directory / WORKFLOW_FILE)
        raise DocumentError(
            DocumentProblem(file, None, None, dotted(where), text, hint) for where, text, hint in flow.problems
        )
    return Problem(
        name=workflow.name,
        tiers=infrastructure.tiers,
        sources=tuple(
            Source(
                name,
                source.tier,
                source.rate_per_s,
                source.message_bytes,
                source.arrivals,
                source.deliver,
                source.streams or 0,
            )
            for name, source in workflow.sources.items()
        ),
        operators=_operators(project.directory, workflow, infrastructure, project.profiles, flow),
        pools=_pools(infrastructure),
        links=tuple(
            Link(
                link.upstream_tier,
                link.downstream_tier,
                link.price_usd_per_gib,
                link.bandwidth_bytes_per_s,
                link.latency_s,
            )
            for link in infrastructure.links
        ),
        accuracy=accuracy_model(project.profiles.accuracy, workflow),
        slo=Slo(workflow.slo.accuracy, workflow.slo.latency_p99_s, workflow.slo.budget_usd_per_h),
        utilisation=infrastructure.limits.utilisation,
        hop_s=project.profiles.hop_s or 0.0,
        sites={tier: count for tier, count in infrastructure.sites.items() if count > 1},
        stale_profiles=tuple(str(entry) for entry in project.stale),
    )


def require_current(project: AnyProject) -> None:
    """StaleProfilesError with all stale entries of the project's workflows, unless they are accepted."""
    parts = project.workflows.values() if isinstance(project, MultiWorkflowProject) else [project]
    stale = [entry for part in parts if not part.accept_stale for entry in part.stale]
    if stale:
        command = f"jellybean profile {shlex.quote(str(project.directory))}"
        step = f"run `{command}` to measure what changed, or go on with these figures: --stale"
        raise StaleProfilesError([entry.problem for entry in stale], step, [entry.to_dict() for entry in stale])


def _with_model_paths(problem: Problem, workflow: str) -> Problem:
    """The problem with model paths relative to the folder that holds all workflows."""
    operators = (
        replace(operator, variants=tuple(with_model_path(variant, workflow) for variant in operator.variants))
        for operator in problem.operators
    )
    return replace(problem, operators=tuple(operators))


def with_model_path(variant: Variant, workflow: str) -> Variant:
    """The variant with its model's path relative to the folder that holds all workflows."""
    if variant.model is None or variant.model.python is not None:
        return variant
    path = Path(WORKFLOWS_FOLDER, workflow, variant.model.path).as_posix()
    files = tuple(
        replace(file, path=Path(WORKFLOWS_FOLDER, workflow, file.path).as_posix()) for file in variant.model.files
    )
    return replace(variant, model=replace(variant.model, path=path, files=files))


def accuracy_model(profile: AccuracyProfile | None, workflow: WorkflowDocument) -> AccuracyModel:
    """The solver's accuracy model; an empty one without an accuracy section."""
    if profile is None:
        return EndToEnd((), {})
    if profile.end_to_end is not None:
        return _end_to_end(profile, workflow)
    if profile.per_operator is not None:
        tables = {
            operator: {
                variant: tuple(AccuracyRow(point.inputs, point.output) for point in points)
                for variant, points in variants.items()
                if variant in workflow.operators[operator].variants
            }
            for operator, variants in profile.per_operator.items()
        }
        inputs = {
            operator: tuple(edge.upstream for edge in workflow.operators[operator].inputs if edge.upstream in tables)
            for operator in tables
        }
        return PerOperator(inputs, tables)
    return Independent(
        {
            operator: {
                name: percent for name, percent in variants.items() if name in workflow.operators[operator].variants
            }
            for operator, variants in (profile.independent or {}).items()
        }
    )


def _end_to_end(profile: AccuracyProfile, workflow: WorkflowDocument) -> EndToEnd:
    """The measured accuracies, keyed by the chosen variants of those operators that have more than one variant."""
    choices = tuple(name for name, spec in workflow.operators.items() if len(spec.variants) > 1)
    table: dict[tuple[str, ...], float] = {}
    for row in profile.end_to_end or ():
        if all(variant in workflow.operators[name].variants for name, variant in row.selection.items()):
            table[tuple(row.selection[name] for name in choices)] = row.accuracy
    return EndToEnd(choices, table)


def _pools(infrastructure: InfrastructureDocument) -> tuple[Pool, ...]:
    """The pools that have workers; `count: 0` disables a pool."""
    return tuple(
        Pool(
            name,
            pool.tier,
            pool.count,
            pool.price_usd_per_h,
            pool.sharing or infrastructure.limits.sharing,
            pool.memory_bytes,
            pool.emulated_speed,
            pool.device.name,
            pool.device.options,
        )
        for name, pool in infrastructure.workers.items()
        if pool.count > 0
    )


def _operators(
    directory: Path,
    workflow: WorkflowDocument,
    infrastructure: InfrastructureDocument,
    profiles: ProfilesDocument,
    flow: Flow,
) -> tuple[Operator, ...]:
    readers = readers_by_upstream(flow)
    result: list[Operator] = []
    for name in flow.order:
        operator = workflow.operators[name]
        max_batch = max_batch_size(name, workflow, infrastructure, flow)
        variants = tuple(
            build_variant(
                variant,
                python_ref(directory, name, variant, spec)
                or model_ref(directory, spec.model, spec.sha256, spec.port_names, spec.files),
                profiles.operators[name][variant],
                infrastructure,
                readers.get(name, ()),
                max_batch,
                fan_out_ratios(workflow, name, variant, profiles.operators[name][variant]),
            )
            for variant, spec in operator.variants.items()
        )
        state: tuple[tuple[str, str], ...] = ()
        if operator.state is not None:
            state = tuple(operator.state.tensors.items())
            variants = with_whole_streams(directory, name, variants, workflow, infrastructure)
        result.append(Operator(name, flow.edges[name], variants, operator.tiers, operator.batch_delay_s, state))
    return tuple(result)


def readers_by_upstream(flow: Flow) -> Mapping[str, list[str]]:
    """Source or operator -> the operators that read it."""
    readers: dict[str, list[str]] = {}
    for edges in flow.edges.values():
        for edge in edges:
            readers.setdefault(edge.upstream, []).append(edge.downstream)
    return readers


def max_batch_size(
    operator: str, workflow: WorkflowDocument, infrastructure: InfrastructureDocument, flow: Flow
) -> int:
    """Largest batch of an operator, in requests; 1 for operators that gather or fan out."""
    if operator in unbatched([edge for edges in flow.edges.values() for edge in edges]):
        return 1
    limit = infrastructure.limits.batch
    return min(limit, workflow.operators[operator].batch or limit)


def build_variant(
    name: str,
    model: ModelRef | None,
    profile: VariantProfile,
    infrastructure: InfrastructureDocument,
    readers: Sequence[str],
    max_batch: int,
    ratios: Mapping[str, float],
) -> Variant:
    """The solver's variant: service times for batches up to `max_batch` requests, memory for the batches plans use.

    `readers`: operators that read its output. `ratios`: downstream operator -> fan-out ratio, if it depends on the
    variant.
    """
    service: dict[str, Times] = {}
    memory: dict[str, float] = {}
    for pool, worker in infrastructure.workers.items():
        batches = profile.latency.get(worker.type or pool)
        if batches is None or worker.count == 0:
            continue
        sizes = [size for size in sorted(batches) if size <= max_batch and _fits(batches[size], size, worker)]
        service[pool] = {size: service_time(batches[size], infrastructure.limits.load_from) for size in sizes}
        used = (batches[size].memory_bytes for size in sizes if size <= best_batch(service[pool]))
        measured = [size_bytes for size_bytes in used if size_bytes is not None]
        if measured:
            memory[pool] = max(measured)
    messages = {reader: profile.bytes_to(reader) or 0.0 for reader in readers}
    return Variant(name, service, messages, memory, model, profile.children, ratios)


def fan_out_ratios(
    workflow: WorkflowDocument, operator: str, variant: str, profile: VariantProfile
) -> dict[str, float]:
    """Downstream operator -> fan-out ratio of this variant, for fan-outs whose ratio depends on the variant."""
    ratios: dict[str, float] = {}
    for downstream, spec in workflow.operators.items():
        for edge in spec.inputs:
            if edge.upstream == operator and edge.measured:
                ratios[downstream] = profile.mean_children
            elif edge.upstream == operator and edge.by_variant:
                ratios[downstream] = edge.by_variant[variant]
    return ratios


def model_ref(
    directory: Path,
    model: str | None,
    sha256: str | None,
    names: PortNames = PortNames(),
    hashes: Mapping[str, str] = MappingProxyType({}),
) -> ModelRef | None:
    """Reference to a model by content hash, with its size in bytes if its files are present; None if no model.

    `hashes`: of the files of a model with data files, for where they are not present.
    """
    if not model or not sha256:
        return None
    path = Path(model).as_posix()
    files = _model_files(directory, path) or tuple(ModelFile(name, digest) for name, digest in hashes.items())
    sizes = [file.size_bytes for file in files]
    if not files and (directory / model).is_file():
        sizes = [float((directory / model).stat().st_size)]
    size_bytes = sum(size for size in sizes if size is not None) if sizes and None not in sizes else None
    return ModelRef(path, sha256, size_bytes, None, _model_ports(names), files)


def _model_files(directory: Path, model: str) -> tuple[ModelFile, ...]:
    """The files of a model with data files, with their hashes; none for a single file, or if the model is not here.

    InputError if one of them cannot be read.
    """
    try:
        if not (directory / model).is_file() or not data_names(directory / model):
            return ()
        found = hash_model(directory / model)[1]
    except AgentError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{directory / model} cannot be read: {describe_error(error)}") from error
    folder = PurePosixPath(model).parent
    paths = [(folder / file.name).as_posix() if file.name else model for file in found]
    return tuple(ModelFile(path, file.sha256, file.size_bytes) for path, file in zip(paths, found, strict=True))


def _model_ports(names: PortNames) -> ModelPorts | None:
    return None if names == PortNames() else ModelPorts(names.inputs, names.output, names.outputs)


def python_ref(directory: Path, operator: str, variant: str, spec: VariantSpec) -> ModelRef | None:
    """Reference to the variant's Python function by content hash of its module; None if it has no function.

    DocumentError if the function does not exist.
    """
    if spec.python is None:
        return None
    try:
        module_sha256 = spec.sha256 or function_source(directory, spec.python).sha256
    except AgentError as error:
        where = dotted(("operators", operator, "variants", variant, "python"))
        hint = where_to_put_it(spec.python)
        raise DocumentError(
            [DocumentProblem(str(directory / WORKFLOW_FILE), None, None, where, str(error), hint)]
        ) from error
    function = PythonRef(spec.python, canonical_json(spec.arguments), module_sha256)
    return ModelRef("", function_digest(spec, module_sha256), 0.0, function, _model_ports(spec.port_names))


def _fits(measured: BatchProfile, size: int, worker: WorkerPoolSpec) -> bool:
    """True if a batch fits into an empty worker's memory. Size 1 always passes: the solver reports missing memory."""
    loaded, limit = measured.memory_bytes, worker.memory_bytes
    return size == 1 or loaded is None or limit is None or loaded <= limit


def service_time(measured: BatchProfile, load_from: str) -> ServiceTime:
    """Service time of one batch. If no mean was measured, it is that of the piecewise linear quantile function.

    `load_from`: name of the statistic that planning uses as load (`limits.load_from`).
    """
    load_s = latency_statistic(measured, load_from)
    mean_s = measured.mean_s if measured.mean_s is not None else _mean_of(measured.quantiles)
    return ServiceTime(load_s if load_s is not None else mean_s, mean_s, measured.quantiles)


def _mean_of(quantiles: tuple[tuple[float, float], ...]) -> float:
    """Mean in seconds of the quantile function that the simulator samples from, given (probability, seconds) points.

    The function is linear between the points, constant below the first and extrapolated above the last.
    """
    first, last = quantiles[0][1], quantiles[-1]
    if len(quantiles) == 1:
        return first
    (left, low), (right, high) = quantiles[-2], last
    slope = (high - low) / (right - left)
    return quantile_mean(((0.0, first), *quantiles, (1.0, high + slope * (1.0 - right))))
