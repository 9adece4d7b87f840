"""Build the planning problem from validated documents."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jellybean.documents.checks.site_checks import most_of_any_site
from jellybean.documents.flow import Flow, follow_requests
from jellybean.documents.layout import PROFILES_FILE, WORKFLOW_FILE, profile_command
from jellybean.documents.multi_workflow import AnyProject, MultiWorkflowProject, written_projects
from jellybean.documents.planning_problem.accuracy import accuracy_model
from jellybean.documents.planning_problem.audit import audited, stated_audit
from jellybean.documents.planning_problem.device_memory import require_device_memory
from jellybean.documents.planning_problem.forms import with_forms
from jellybean.documents.planning_problem.model_files import model_ref, python_ref, with_model_path
from jellybean.documents.planning_problem.site_problems import WholeFleet, site_problem
from jellybean.documents.planning_problem.stream_capacity import planned_utilisation, with_whole_streams
from jellybean.documents.planning_problem.variants import (
    build_variant,
    counts_rows,
    fan_out_ratios,
    max_batch_size,
    readers_by_upstream,
)
from jellybean.documents.project import Project
from jellybean.documents.schema.infrastructure import InfrastructureDocument
from jellybean.documents.schema.profiles import (
    ProfilesDocument,
)
from jellybean.documents.schema.reader import dotted
from jellybean.documents.schema.workflow import WorkflowDocument
from jellybean.errors import DocumentError, DocumentProblem, StaleProfilesError
from jellybean_solver import (
    EndToEnd,
    Link,
    Operator,
    Pool,
    Problem,
    Slo,
    Source,
    combine_workflows,
    counted,
    with_audit,
)

USD_PER_UNIT = 1e-3  # what a Wh or a gram counts as the objective, where no price is stated: 1 USD/kWh, 1 USD/kg


def build_problem(project: AnyProject) -> Problem:
    """Build the solver's problem. DocumentError if profiles are missing or the request rates are inconsistent.

    StaleProfilesError if profiles no longer match the files, unless the project was loaded to accept them. With the
    objective energy or carbon its prices are those of that resource alone (`counted`).
    """
    require_current(project)
    problem = _in_money(project)
    stated = project.infrastructure.resources.get(problem.objective)
    return counted(problem, (stated and stated.usd) or USD_PER_UNIT)


def _in_money(project: AnyProject) -> Problem:
    if not isinstance(project, MultiWorkflowProject):
        return audited(project, with_whole_streams(project, of_one_workflow(project)))
    if project.written:
        return _of_sites(project)
    shared = planned_utilisation([*project.workflows.values()])
    parts = {
        name: audited(part, _with_model_paths(of_one_workflow(part, shared), name))
        for name, part in project.workflows.items()
    }
    return _combined(project, parts)


def _paid(fleet: InfrastructureDocument, uses: Mapping[str, float]) -> float:
    """USD for the uses of resources."""
    return sum((one.usd or 0.0) * uses.get(name, 0.0) for name, one in fleet.resources.items())


def _combined(project: MultiWorkflowProject, parts: Mapping[str, Problem]) -> Problem:
    parts = {name: with_whole_streams(project.workflows[name], part, name) for name, part in parts.items()}
    problem = combine_workflows(project.name, parts, project.infrastructure.limits.budget_usd_per_h)
    return _with_admission(problem, project)


def _of_sites(project: MultiWorkflowProject) -> Problem:
    """The problem of all sites that differ. Figures are those of the written projects, computed once for all sites."""
    infrastructure, shared = project.infrastructure, planned_utilisation([*project.written.values()])
    fleet = WholeFleet(infrastructure.tiers, _pools(infrastructure), _links(infrastructure))
    common = {name: _in_any_site(own, name, shared) for name, own in project.written.items()}
    audits = {
        name: stated_audit(own, common[name])
        for name, own in project.written.items()
        if own.workflow.slo.audit is not None
    }

    def of_site(name: str, part: Project) -> Problem:
        written = project.written_name(name)
        problem = site_problem(common[written], fleet, part, _sources(part.workflow))
        return with_audit(problem, audits[written]) if written in audits else problem

    problem = _combined(project, {name: of_site(name, part) for name, part in project.workflows.items()})
    stale = tuple(str(entry) for written in project.written.values() for entry in written.all_stale)
    return replace(problem, stale_profiles=stale)


def _in_any_site(written: Project, workflow: str, utilisation: float) -> Problem:
    """The problem of a workflow, or of the only one (""), with the workers of whichever site has most."""
    if written.site_table is None:
        raise ValueError(f"{written.workflow.name} has no sites that differ")
    fleet = most_of_any_site(written.infrastructure, written.site_table)
    cascades = tuple(replace(own, infrastructure=fleet) for own in written.alternatives)
    problem = of_one_workflow(replace(written, infrastructure=fleet, alternatives=cascades), utilisation)
    return _with_model_paths(problem, workflow) if workflow else problem


def _with_admission(problem: Problem, project: MultiWorkflowProject) -> Problem:
    """The problem with what each workflow is worth, its priority and its owner."""
    stated = {name: part.workflow.admission for name, part in project.workflows.items()}
    workflows = tuple(
        replace(
            workflow,
            worth_usd_per_h=stated[workflow.name].worth_usd_per_h,
            priority=stated[workflow.name].priority,
            owner=stated[workflow.name].owner,
        )
        for workflow in problem.workflows
    )
    return replace(problem, workflows=workflows)


def of_one_workflow(project: Project, utilisation: float | None = None) -> Problem:
    """The problem of one workflow, without whole streams and an audit.

    `utilisation`: the highest planned one of workers that it shares with other workflows; None: its own.
    """
    workflow, infrastructure = project.workflow, project.infrastructure
    highest = planned_utilisation([project]) if utilisation is None else utilisation
    if project.profiles is None:
        path = project.directory / PROFILES_FILE
        hint = f"run: {profile_command(path)}"
        raise DocumentError([DocumentProblem(str(path), 1, 1, "", "planning needs profiles", hint)])
    require_device_memory(project, project.profiles)
    flow = follow_requests(workflow, infrastructure.sites)
    if flow.problems:
        file = str(project.directory / WORKFLOW_FILE)
        raise DocumentError(
            DocumentProblem(file, None, None, dotted(where), text, hint) for where, text, hint in flow.problems
        )
    problem = Problem(
        name=workflow.name,
        tiers=infrastructure.tiers,
        sources=_sources(workflow),
        operators=_operators(project.directory, workflow, infrastructure, project.profiles, flow),
        pools=_pools(infrastructure),
        links=_links(infrastructure),
        accuracy=accuracy_model(project.profiles.accuracy, workflow),
        slo=Slo(
            workflow.slo.accuracy,
            workflow.slo.latency_p99_s,
            workflow.slo.budget_usd_per_h,
            workflow.slo.mean_accuracy,
            workflow.slo.survives,
            workflow.slo.penalty_usd_per_h,
            workflow.slo.soft_latency_p99_s,
            workflow.slo.latency_penalty_usd_per_h_per_s,
            workflow.slo.margin,
        ),
        utilisation=highest,
        hop_s=project.profiles.hop_s or 0.0,
        sites={tier: count for tier, count in infrastructure.sites.items() if count > 1},
        stale_profiles=tuple(str(entry) for entry in project.all_stale),
        objective=workflow.objective,
        most={name: one.most for name, one in infrastructure.resources.items() if one.most is not None},
    )
    return with_forms(project, problem, [(own, of_one_workflow(own, utilisation)) for own in project.alternatives])


def request_graph(project: Project) -> Problem:
    """The sources and edges of a project's workflow, without models and workers; needs no profiles."""
    workflow, sites = project.workflow, project.infrastructure.sites
    flow = follow_requests(workflow, sites)
    operators = tuple(Operator(name, flow.edges.get(name, ()), ()) for name in flow.order)
    return Problem("", (), _sources(workflow), operators, (), (), EndToEnd((), {}), sites=sites)


def require_current(project: AnyProject) -> None:
    """StaleProfilesError with all stale entries of the project's workflows, unless they are accepted."""
    stale = [entry for part in written_projects(project).values() if not part.accept_stale for entry in part.all_stale]
    if stale:
        command = f"jellybean profile {shlex.quote(str(project.directory))}"
        step = f"run `{command}` to measure what changed, or go on with these figures: --stale"
        raise StaleProfilesError([entry.problem for entry in stale], step, [entry.to_dict() for entry in stale])


def _with_model_paths(problem: Problem, workflow: str) -> Problem:
    """The problem with model paths relative to the folder that holds all workflows."""
    operators = (one.with_variants(lambda own: with_model_path(own, workflow)) for one in problem.operators)
    return replace(problem, operators=tuple(operators))


def _sources(workflow: WorkflowDocument) -> tuple[Source, ...]:
    return tuple(
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
    )


def _pools(infrastructure: InfrastructureDocument) -> tuple[Pool, ...]:
    """The pools that have workers; `count: 0` disables a pool."""
    return tuple(
        Pool(
            name,
            pool.tier,
            pool.count,
            pool.worker_price_usd_per_h + _paid(infrastructure, uses),
            pool.sharing or infrastructure.limits.sharing,
            pool.memory_bytes,
            pool.emulated_speed,
            pool.worker_device.name,
            pool.worker_device.options,
            pool.worker_device_memory_bytes,
            pool.terms,
            pool.paid_usd_per_h,
            pool.max_starts,
            uses,
        )
        for name, pool in infrastructure.workers.items()
        for uses in [infrastructure.uses(pool.worker_power_w, pool.carbon_g_per_wh)]
        if pool.count > 0
    )


def _links(infrastructure: InfrastructureDocument) -> tuple[Link, ...]:
    return tuple(
        Link(
            link.upstream_tier,
            link.downstream_tier,
            link.price_usd_per_gib + _paid(infrastructure, uses),
            link.bandwidth_bytes_per_s,
            link.latency_s,
            uses,
        )
        for link in infrastructure.links
        for uses in [infrastructure.uses(link.energy_wh_per_gib, link.carbon_g_per_wh)]
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
        variants = tuple(
            build_variant(
                variant,
                python_ref(directory, name, variant, spec)
                or model_ref(directory, spec.model, spec.sha256, spec.port_names, spec.files),
                profiles.operators[name][variant],
                infrastructure,
                readers.get(name, ()),
                max_batch_size(name, variant, workflow, infrastructure, flow),
                fan_out_ratios(workflow, name, variant, profiles.operators[name][variant]),
            )
            for variant, spec in operator.variants.items()
        )
        variants = tuple(
            replace(variant, counts_rows=counts_rows(name, operator.variants[variant.name], flow))
            for variant in variants
        )
        state: tuple[tuple[str, str], ...] = ()
        if operator.state is not None:
            state = tuple(operator.state.tensors.items())
        result.append(Operator(name, flow.edges[name], variants, operator.tiers, operator.batch_delay_s, state))
    return tuple(result)
