"""The forms of operators, cut models and cascades, of a planning problem."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from jellybean.documents.flow import follow_requests
from jellybean.documents.planning_problem.model_files import model_ref
from jellybean.documents.planning_problem.variants import (
    build_variant,
    fan_out_ratios,
    max_batch_size,
    readers_by_upstream,
)
from jellybean.documents.project import Project
from jellybean.documents.schema.profiles import ANY_DOWNSTREAM, VariantProfile
from jellybean_agent import PortNames
from jellybean_solver import Form, Operator, Problem, Stage, cut_form


def with_forms(project: Project, problem: Problem, cascades: Sequence[tuple[Project, Problem]]) -> Problem:
    """The problem with the cuts that the workflow allows and the profiles have measured, and with its cascades.

    `cascades`: the project with each of them, and the problem of that.
    """
    forms: dict[str, list[Form]] = {}
    for operator in problem.operators:
        spec = project.workflow.operators[operator.name]
        if any(map(spec.cuts_of, spec.variants)):
            forms[operator.name] = [*_cuts(project, operator)]
    for own, formed in cascades:
        if own.cascade is not None:
            parts = tuple(operator for operator in formed.operators if operator.name in own.cascade.variants)
            form = Form(parts, formed.accuracy, has_one_output=True)
            forms.setdefault(own.cascade.operator, []).append(form)
    if not forms:
        return problem
    operators = (replace(one, forms=tuple(forms.get(one.name, ()))) for one in problem.operators)
    return replace(problem, operators=tuple(operators))


def stage_names(names: PortNames, head_inputs: Collection[str]) -> tuple[PortNames, PortNames]:
    """The port names of head and tail of a model with these names. `head_inputs`: upstreams that the head reads."""
    early = {upstream: name for upstream, name in names.inputs.items() if upstream in head_inputs}
    late = {upstream: name for upstream, name in names.inputs.items() if upstream not in head_inputs}
    return PortNames(early), PortNames(late, names.output, names.outputs, names.rows, names.rows_of)


def _cuts(project: Project, own: Operator) -> Iterator[Form]:
    """The measured cuts of an operator's variants."""
    operator = own.name
    workflow, fleet, profiles = project.workflow, project.infrastructure, project.profiles
    if profiles is None:
        return
    flow = follow_requests(workflow, fleet.sites)
    readers = readers_by_upstream(flow).get(operator, [])
    for variant in workflow.operators[operator].variants:
        whole = profiles.operators[operator][variant]
        ratios = fan_out_ratios(workflow, operator, variant, whole)
        max_batch = max_batch_size(operator, variant, workflow, fleet, flow)
        for cut in (whole.cuts or ()) if workflow.operators[operator].cuts_of(variant) else ():
            head_stage = Stage(operator, variant, 1, cut.layers, cut.of)
            if cut.whole != workflow.operators[operator].variants[variant].sha256:
                continue  # accepted as stale, but its stages would serve another model
            sent = {ANY_DOWNSTREAM: cut.crossing_bytes}
            head_profile = VariantProfile(message=sent, latency=cut.head.latency)
            tail_profile = VariantProfile(
                message=whole.message_bytes, latency=cut.tail.latency, children=whole.children
            )
            names = stage_names(workflow.operators[operator].variants[variant].port_names, cut.inputs)
            parts = zip((cut.head, cut.tail), names, strict=True)
            files = [model_ref(project.directory, part.model, part.sha256, ports) for part, ports in parts]
            head = build_variant(f"{variant}.1-{cut.layers}", files[0], head_profile, fleet, [operator], max_batch, {})
            tail = build_variant(variant, files[1], tail_profile, fleet, readers, max_batch, ratios)
            tail_stage = replace(head_stage, first=cut.layers + 1, last=cut.of)
            yield cut_form(own, replace(head, stage=head_stage), replace(tail, stage=tail_stage), cut.inputs)
