"""From checked documents to the planning problem."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jellybean.documents.flow import Flow, flow_of
from jellybean.documents.layout import PROFILES_FILE, WORKFLOW_FILE, WORKFLOWS_FOLDER
from jellybean.documents.schema.models import InfrastructureDocument, VariantSpec, WorkerPoolSpec, WorkflowDocument
from jellybean.documents.schema.profiles import (
    AccuracyProfile,
    Figures,
    ProfilesDocument,
    VariantProfile,
    latency_figure,
)
from jellybean.documents.schema.reader import dotted
from jellybean.documents.shared import AnyProject, SharedProject
from jellybean.errors import DocumentError, DocumentProblem
from jellybean_agent import AgentError, find_module_source, split_function_name
from jellybean_protos.plan_format import canonical_json
from jellybean_solver import (
    AccuracyModel,
    EndToEnd,
    Independent,
    Link,
    ModelRef,
    Operator,
    PerOperator,
    Pool,
    Problem,
    PythonRef,
    Row,
    ServiceTime,
    Slo,
    Source,
    Times,
    Variant,
    best_batch,
    quantile_mean,
    together,
    unbatched,
)


def build_problem(project: AnyProject) -> Problem:
    """The problem that the solver answers. DocumentError without profiles, or when requests cannot flow."""
    if isinstance(project, SharedProject):
        parts = {name: _placed(build_problem(part), name) for name, part in project.workflows.items()}
        return together(project.name, parts, project.infrastructure.limits.budget_usd_per_h)
    workflow, infrastructure = project.workflow, project.infrastructure
    if project.profiles is None:
        path = project.directory / PROFILES_FILE
        hint = f"run: jellybean profile {project.directory}"
        raise DocumentError([DocumentProblem(str(path), 1, 1, "", "planning needs profiles", hint)])
    flow = flow_of(workflow, infrastructure.sites)
    if flow.problems:
        file = str(project.directory / WORKFLOW_FILE)
        raise DocumentError(
            DocumentProblem(file, None, None, dotted(where), text, hint) for where, text, hint in flow.problems
        )
    return Problem(
        name=workflow.name,
        tiers=infrastructure.tiers,
        sources=tuple(
            Source(name, source.tier, source.rate_per_s, source.message_bytes, source.arrivals, source.deliver)
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
    )


def _placed(problem: Problem, workflow: str) -> Problem:
    """The problem of one of several workflows, its models' files told from the folder of all."""
    operators = (
        replace(operator, variants=tuple(placed(variant, workflow) for variant in operator.variants))
        for operator in problem.operators
    )
    return replace(problem, operators=tuple(operators))


def placed(variant: Variant, workflow: str) -> Variant:
    """A variant of one of several workflows, its model's file told from the folder of all."""
    if variant.model is None or variant.model.python is not None:
        return variant
    path = Path(WORKFLOWS_FOLDER, workflow, variant.model.path).as_posix()
    return replace(variant, model=replace(variant.model, path=path))


def accuracy_model(profile: AccuracyProfile | None, workflow: WorkflowDocument) -> AccuracyModel:
    """The solver's accuracy model; one that knows nothing when there is no accuracy section."""
    if profile is None:
        return EndToEnd((), {})
    if profile.end_to_end is not None:
        return _end_to_end(profile, workflow)
    if profile.per_operator is not None:
        tables = {
            operator: {
                variant: tuple(Row(point.inputs, point.output) for point in points)
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
    """Rows that the workflow's variants can make. Operators with one variant have no say, so they are left out."""
    choices = tuple(name for name, spec in workflow.operators.items() if len(spec.variants) > 1)
    table: dict[tuple[str, ...], float] = {}
    for row in profile.end_to_end or ():
        if all(variant in workflow.operators[name].variants for name, variant in row.selection.items()):
            table[tuple(row.selection[name] for name in choices)] = row.accuracy
    return EndToEnd(choices, table)


def _pools(infrastructure: InfrastructureDocument) -> tuple[Pool, ...]:
    """Pools with workers; `count: 0` takes a pool out."""
    return tuple(
        Pool(
            name,
            pool.tier,
            pool.count,
            pool.price_usd_per_h,
            pool.sharing or infrastructure.limits.sharing,
            pool.memory_bytes,
            pool.speed,
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
    readers = readers_of(flow)
    found: list[Operator] = []
    for name in flow.order:
        operator = workflow.operators[name]
        most = most_requests(name, workflow, infrastructure, flow)
        variants = tuple(
            variant_of(
                variant,
                python_ref(directory, name, variant, spec) or model_ref(directory, spec.model, spec.sha256),
                profiles.operators[name][variant],
                infrastructure,
                readers.get(name, ()),
                most,
                ratios_of(workflow, name, variant, profiles.operators[name][variant]),
            )
            for variant, spec in operator.variants.items()
        )
        found.append(Operator(name, flow.edges[name], variants, operator.tiers, operator.batch_delay_s))
    return tuple(found)


def readers_of(flow: Flow) -> Mapping[str, list[str]]:
    """Source or operator -> the operators that read it."""
    readers: dict[str, list[str]] = {}
    for edges in flow.edges.values():
        for edge in edges:
            readers.setdefault(edge.upstream, []).append(edge.downstream)
    return readers


def most_requests(operator: str, workflow: WorkflowDocument, infrastructure: InfrastructureDocument, flow: Flow) -> int:
    """That one run of an operator may take."""
    if operator in unbatched([edge for edges in flow.edges.values() for edge in edges]):
        return 1
    limit = infrastructure.limits.batch
    return min(limit, workflow.operators[operator].batch or limit)


def variant_of(
    name: str,
    model: ModelRef | None,
    profile: VariantProfile,
    infrastructure: InfrastructureDocument,
    readers: Sequence[str],
    most: int,
    ratios: Mapping[str, float],
) -> Variant:
    """With batch sizes up to `most`, and the memory that the one in use takes."""
    service: dict[str, Times] = {}
    memory: dict[str, float] = {}
    for pool, worker in infrastructure.workers.items():
        batches = profile.latency.get(worker.type or pool)
        if batches is None or worker.count == 0:
            continue
        sizes = [size for size in sorted(batches) if size <= most and _fits(batches[size], size, worker)]
        service[pool] = {size: service_time(batches[size], infrastructure.limits.load_from) for size in sizes}
        used = [batches[size].memory_bytes for size in sizes if size <= best_batch(service[pool])]
        stated = [loaded for loaded in used if loaded is not None]
        if stated:
            memory[pool] = max(stated)
    messages = {reader: profile.bytes_to(reader) or 0.0 for reader in readers}
    return Variant(name, service, messages, memory, model, profile.children, ratios)


def ratios_of(workflow: WorkflowDocument, operator: str, variant: str, profile: VariantProfile) -> dict[str, float]:
    """The variant's own on the fan-outs where they differ by variant: as written, or where it says so as measured."""
    found: dict[str, float] = {}
    for downstream, spec in workflow.operators.items():
        for edge in spec.inputs:
            if edge.upstream == operator and edge.measured:
                found[downstream] = profile.mean_children
            elif edge.upstream == operator and edge.by_variant:
                found[downstream] = edge.by_variant[variant]
    return found


def model_ref(directory: Path, model: str | None, sha256: str | None) -> ModelRef | None:
    """The model's file by content, with its size where the file is there; None without a file."""
    if not model or not sha256:
        return None
    path = directory / model
    return ModelRef(Path(model).as_posix(), sha256, path.stat().st_size if path.is_file() else None)


def python_ref(directory: Path, operator: str, variant: str, spec: VariantSpec) -> ModelRef | None:
    """The variant's function, by the content of its module; None without one. DocumentError where it is not known."""
    if spec.python is None:
        return None
    try:
        module_sha256 = spec.sha256 or find_module_source(split_function_name(spec.python)[0]).sha256
    except AgentError as error:
        where = dotted(("operators", operator, "variants", variant, "python"))
        hint = "where only the agents have it, write its sha256 there"
        raise DocumentError(
            [DocumentProblem(str(directory / WORKFLOW_FILE), None, None, where, str(error), hint)]
        ) from error
    arguments = canonical_json(spec.arguments)
    digest = hashlib.sha256(canonical_json([spec.python, arguments, module_sha256]).encode()).hexdigest()
    return ModelRef("", digest, 0.0, PythonRef(spec.python, arguments, module_sha256))


def _fits(figures: Figures, size: int, worker: WorkerPoolSpec) -> bool:
    """Whether a batch size fits into a worker that holds nothing else; 1 always counts, so that its lack is told."""
    loaded, limit = figures.memory_bytes, worker.memory_bytes
    return size == 1 or loaded is None or limit is None or loaded <= limit


def service_time(figures: Figures, load_from: str) -> ServiceTime:
    """Time of one batch. Without a measured mean it is the mean of the measured quantiles, joined by straight lines."""
    load_s = latency_figure(figures, load_from)
    mean_s = figures.mean_s if figures.mean_s is not None else _mean_of(figures.quantiles)
    return ServiceTime(load_s if load_s is not None else mean_s, mean_s, figures.quantiles)


def _mean_of(quantiles: tuple[tuple[float, float], ...]) -> float:
    """Constant below the first quantile, the last slope above the last: as the simulator draws."""
    first, last = quantiles[0][1], quantiles[-1]
    if len(quantiles) == 1:
        return first
    (left, low), (right, high) = quantiles[-2], last
    slope = (high - low) / (right - left)
    return quantile_mean(((0.0, first), *quantiles, (1.0, high + slope * (1.0 - right))))
