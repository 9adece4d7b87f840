"""`--set path=value`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

from jellybean.documents import InfrastructureDocument, ProfilesDocument, Project, WorkflowDocument, load_project
from jellybean.documents.overrides import SECTIONS
from jellybean.errors import DocumentError, DocumentProblem


def told(folder: Path, *overrides: str) -> Sequence[DocumentProblem]:
    with pytest.raises(DocumentError) as raised:
        load_project(folder, overrides)
    return raised.value.problems


def test_values_of_all_three_documents(folder: Path) -> None:
    project = load_project(
        folder,
        [
            "slo.accuracy=57",
            "sources.camera.rate=80/s",
            "sources.scale.rate=4800/min",
            "limits.sharing=exclusive",
            "workers.box.count=3",
            "links.0.price=0.2 USD/GiB",
            "profiles.hop=1 ms",
            "profiles.operators.read.cnn.latency.box=9 ms",
            "operators.detect.variants=[small]",
        ],
    )
    assert project.profiles is not None
    assert project.workflow.slo.accuracy == 57
    assert project.workflow.sources["scale"].rate_per_s == pytest.approx(80)
    assert project.infrastructure.limits.sharing == "exclusive"
    assert project.infrastructure.workers["box"].count == 3
    assert project.infrastructure.links[0].price_usd_per_gib == 0.2
    assert project.profiles.hop_s == pytest.approx(1e-3)
    assert project.profiles.operators["read"]["cnn"].latency["box"][1].mean_s == pytest.approx(9e-3)
    assert list(project.workflow.operators["detect"].variants) == ["small"]


def slo(project: Project) -> tuple[float | None, float | None]:
    return project.workflow.slo.accuracy, project.workflow.slo.budget_usd_per_h


def test_optional_keys_come_and_go(folder: Path) -> None:
    assert slo(load_project(folder, ["slo.accuracy=null", "slo.budget="])) == (None, None)
    assert slo(load_project(folder, ["slo=null"])) == (None, None)
    path = folder / "workflow.yaml"
    path.write_text(path.read_text(encoding="utf-8").partition("slo:")[0], encoding="utf-8")
    assert slo(load_project(folder, ["slo.budget=3 USD/h"])) == (None, 3.0)
    assert load_project(folder, ["workers.box.type=t4"]).infrastructure.workers["box"].type == "t4"


def test_a_list_of_names_keeps_the_models_of_those_variants(folder: Path) -> None:
    path = folder / "workflow.yaml"
    path.write_text(
        path.read_text(encoding="utf-8").replace("[small, large]", "{small: {}, large: {model: nowhere.onnx}}"),
        encoding="utf-8",
    )
    load_project(folder, ["operators.detect.variants=[small]"])
    (problem,) = told(folder, "operators.detect.variants=[large]")
    assert "nowhere.onnx" in problem.message


def test_items_of_lists_are_added_changed_and_removed_by_index(folder: Path) -> None:
    def links(*overrides: str) -> list[tuple[str, str, float]]:
        documents = load_project(folder, ["tiers=[edge, hub, cloud]", *overrides]).infrastructure
        return [(link.upstream_tier, link.downstream_tier, round(link.latency_s, 6)) for link in documents.links]

    (first,) = links()
    added = "links.1={from: edge, to: hub, latency: 5 ms}"
    assert links(added) == [first, ("edge", "hub", 0.005)]
    assert links(added, "links.1.latency=7ms") == [first, ("edge", "hub", 0.007)]
    third = "links.2={from: hub, to: cloud, latency: 6 ms}"
    assert links(added, third, "links.1=null") == [first, ("hub", "cloud", 0.006)]
    assert links(added, third, "links.0.latency=9ms")[0] == (*first[:2], 0.009)

    problems = told(folder, "tiers=[edge, hub, cloud]", added, "links.2={from: hub, to: cluod}", "links.1=null")
    assert [(problem.file, problem.path) for problem in problems] == [
        ("--set links.2={from: hub, to: cluod}", "links.1.to")  # the mark of the item has moved with it
    ]
    (folder / "infrastructure.yaml").write_text(
        (folder / "infrastructure.yaml").read_text(encoding="utf-8").partition("links:")[0], encoding="utf-8"
    )
    assert links("links.0={from: edge, to: cloud, latency: 1 ms}") == [("edge", "cloud", 0.001)]


def test_of_several_options_for_one_path_a_plan_states_the_last(folder: Path) -> None:
    project = load_project(folder, ["slo.budget=5 USD/h", "slo.accuracy=50", "slo.budget=3 USD/h"])
    assert project.overrides == ("slo.accuracy=50", "slo.budget=3 USD/h")


def test_names_may_hold_dots(folder: Path) -> None:
    path = folder / "infrastructure.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("gpu:", "g4dn.xlarge:"), encoding="utf-8")
    project = load_project(folder, ["workers.g4dn.xlarge.count=7"])
    assert project.infrastructure.workers["g4dn.xlarge"].count == 7


@pytest.mark.parametrize(
    ("override", "path", "message", "hint"),
    [
        ("slo.acuracy=57", "slo.acuracy", "unknown key 'acuracy'", "did you mean 'accuracy'"),
        ("sloo.accuracy=57", "sloo.accuracy", "no document has 'sloo'", "did you mean 'slo'"),
        ("sources.camra.rate=8/s", "sources.camra.rate", "sources has no 'camra'", "did you mean 'camera'"),
        ("links.3.price=1 USD/GiB", "links.3.price", "links has no item '3'", "from 0 to 0; links.1=... adds an item"),
        ("links.1=null", "links.1", "links has no item '1'", "from 0 to 0"),
        ("links.x.price=1 USD/GiB", "links.x.price", "links has no item 'x'", ""),
        ("name.x=3", "name.x", "name is 'parcels'", "as a whole"),
        ("slo.accuracy=57 ms", "slo.accuracy", "is not a percentage", "56 %"),
        ("profiles.hop=1", "hop", "1 has no unit", "1 us, 1 ms or 1 s"),
        ("slo.accuracy=[", "slo.accuracy", "is not YAML", ""),
        ("slo.accuracy=*x", "slo.accuracy", "alias *x", ""),
        ("slo", "", "not of the form path=value", "--set slo.accuracy=57"),
        ("=3", "", "not of the form path=value", ""),
        ("sources.camera.tier=null", "sources.camera.tier", "missing key 'tier'", ""),
        ("sources.camera.tier=hub", "sources.camera.tier", "no tier 'hub'", ""),
        (
            "sources.camera.rate=80/s",
            "operators.label.inputs",
            "sources of different rates: camera 80/s, scale 12/s",
            "",
        ),
        ("operators.detect.variants=[huge]", "operators.detect.variants.huge", "has no profile", ""),
        ("operators.detect.inputs.0=scale", "sources.camera", "no operator reads this source", ""),
    ],
)
def test_problems_are_told_at_the_override(folder: Path, override: str, path: str, message: str, hint: str) -> None:
    problems = [problem for problem in told(folder, override) if message in problem.message]
    assert problems
    problem = problems[0]
    assert (problem.file, problem.line, problem.path) == (f"--set {override}", None, path)
    assert hint in problem.hint
    assert str(problem).startswith(f"--set {override}: ")


def test_problems_of_the_files_stay_where_they_are(folder: Path) -> None:
    path = folder / "workflow.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("800 ms", "800"), encoding="utf-8")
    problems = told(folder, "limits.utilisation=2")
    assert [(Path(problem.file).name, problem.line) for problem in problems] == [
        ("--set limits.utilisation=2", None),
        ("workflow.yaml", 16),
    ]


def test_overrides_of_documents_not_asked_for_are_left_alone(folder: Path) -> None:
    (folder / "profiles.yaml").unlink()
    assert load_project(folder, ["profiles.hop=1 ms"], profiles=False).profiles is None


@pytest.mark.parametrize(
    ("section", "model"),
    [("workflow", WorkflowDocument), ("infrastructure", InfrastructureDocument), ("profiles", ProfilesDocument)],
)
def test_every_key_of_a_document_is_one_that_an_override_may_begin_with(section: str, model: type[BaseModel]) -> None:
    assert set(SECTIONS[section]) == {field.alias or name for name, field in model.model_fields.items()}
