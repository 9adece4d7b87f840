"""Models that may be cut in two, as the solver takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jellybean.documents.build import model_ref, most_requests, placed, ratios_of, readers_of, variant_of
from jellybean.documents.flow import flow_of
from jellybean.documents.project import Project
from jellybean.documents.schema.profiles import ANY_DOWNSTREAM, VariantProfile
from jellybean.documents.shared import AnyProject, SharedProject
from jellybean_solver import Cut, Cuts, Stage, qualified


def build_cuts(project: AnyProject) -> Cuts:
    """The cuts that the workflow allows and the profiles know, by operator."""
    if isinstance(project, SharedProject):
        parts = {name: _placed(build_cuts(part), name) for name, part in project.workflows.items()}
        return {name: found for workflow, part in parts.items() for name, found in qualified(workflow, part).items()}
    return {name: found for name in project.workflow.operators if (found := tuple(_cuts(project, name)))}


def _placed(cuts: Cuts, workflow: str) -> Cuts:
    return {
        name: tuple(replace(cut, head=placed(cut.head, workflow), tail=placed(cut.tail, workflow)) for cut in found)
        for name, found in cuts.items()
    }


def _cuts(project: Project, operator: str) -> Iterator[Cut]:
    workflow, fleet, profiles = project.workflow, project.infrastructure, project.profiles
    if profiles is None:
        return
    flow = flow_of(workflow, fleet.sites)
    most = most_requests(operator, workflow, fleet, flow)
    readers = readers_of(flow).get(operator, [])
    for variant in workflow.operators[operator].variants:
        whole = profiles.operators[operator][variant]
        ratios = ratios_of(workflow, operator, variant, whole)
        for cut in (whole.cuts or ()) if workflow.operators[operator].cuts_of(variant) else ():
            stage = Stage(operator, variant, 1, cut.layers, cut.of)
            sent = {ANY_DOWNSTREAM: cut.crossing_bytes}
            early = VariantProfile(message=sent, latency=cut.head.latency)
            late = VariantProfile(message=whole.message_bytes, latency=cut.tail.latency, children=whole.children)
            files = [model_ref(project.directory, one.model, one.sha256) for one in (cut.head, cut.tail)]
            head = variant_of(f"{variant}.1-{cut.layers}", files[0], early, fleet, [operator], most, {})
            tail = variant_of(variant, files[1], late, fleet, readers, most, ratios)
            after = replace(stage, first=cut.layers + 1, last=cut.of)
            yield Cut(replace(head, stage=stage), replace(tail, stage=after), cut.inputs)
