"""How many children each variant's outputs have, on held-out requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from jellybean.documents import (
    BatchProfile,
    ProfilesDocument,
    VariantProfile,
    WorkflowDocument,
    follow_requests,
    load_project,
    ratio_notes,
)
from jellybean.profiler import survey
from jellybean.profiler.flow import Flow
from jellybean.profiler.project import workload_of

REQUESTS = 8


def test_children_are_counted_for_each_variant_and_held_against_its_ratio(
    project_folder: Path, edit: Callable[[Path, str, str], None]
) -> None:
    path = project_folder / "workflow.yaml"
    (model,) = re.findall(r"\n      find: (\{model: .*\})", path.read_text(encoding="utf-8"))
    edit(path, f"      find: {model}", f"      find: {model}\n      again: {model}")
    path.write_text(
        re.sub(
            r"\{from: find, ratio: [0-9.]+\}",
            "{from: find, ratio: {find: 1, again: 2}}",
            path.read_text(encoding="utf-8"),
        ),
        encoding="utf-8",
    )
    project = load_project(project_folder, profiles=False)
    workload = workload_of(project)
    flow = Flow(workload)

    found = survey.survey(workload, flow, REQUESTS)

    means = {
        (variant, down): found.children["find", variant, down]
        for variant in ("find", "again")
        for down in ("shape", "strokes")
    }
    assert len(set(means.values())) == 1  # one model under two names
    assert found.child_shares["find", "find"] == found.child_shares["find", "again"]
    assert flow.traffic.runs["find", "again", "shape"] == REQUESTS

    box = {"box": {1: BatchProfile(mean_s=1.0)}}

    def notes_on(workflow: WorkflowDocument) -> list[str]:
        shares = {
            variant: VariantProfile(latency=box, children=found.child_shares["find", variant])
            for variant in ("find", "again")
        }
        edges = follow_requests(workflow, {}).edges
        return list(ratio_notes(workflow, edges, ProfilesDocument(operators={"find": shares})))

    notes = notes_on(project.workflow)
    assert len(notes) == 4
    assert (
        f"shape: workflow.yaml says ratio 2 from find again, profiles.yaml has {means['again', 'shape']:.3g} children"
        in " ".join(notes)
    )
    said = load_project(
        project_folder, [f"operators.{name}.inputs.0.ratio=measured" for name in ("shape", "strokes")], profiles=False
    )
    assert notes_on(said.workflow) == []
