"""Models as exporters write them: variants that name their tensors differently, from the documents to the agent."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jellybean.documents import build_problem, load_project, write_profiles
from jellybean.documents.provenance.changes import content_changes
from jellybean.documents.provenance.content import Content
from jellybean.documents.schema.profiles import ProfilesDocument
from jellybean.errors import DocumentError
from jellybean.profiler.flow import Flow
from jellybean.profiler.project import workload_of
from jellybean_agent.brain.messages import WorkItem
from jellybean_agent.brain.plan_view import plan_view
from jellybean_agent.process.model_loading import ModelSettings, load_executors
from jellybean_agent.worker.run_outputs import run_items
from jellybean_solver import Plan, solve, to_document
from tests.support.exported_models import CLASSES, make_project, replace, replace_model, sklearn_classifier
from tests.support.measured_project import measured_profiles

SELECTIONS = [
    {"compare": compare, "classify": classify}
    for compare, classify in product(("plain", "exported"), ("torch", "sklearn"))
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_project(tmp_path / "flowers")


def problems(folder: Path) -> list[str]:
    """The problems that `validate` lists, each with its hint."""
    try:
        load_project(folder, profiles=False)
    except DocumentError as error:
        return [f"{one.path}: {one.message} ({one.hint})" for one in error.problems]
    return []


def wanted(folder: Path) -> np.ndarray:
    """The probabilities for the first request."""
    with np.load(folder / "data/heldout.npz") as data:
        scores = (data["left"] - data["right"])[:1, :CLASSES]
    return np.exp(scores) / np.exp(scores).sum()


def test_every_variant_answers_alike_in_the_profiler(folder: Path) -> None:
    flow = Flow(workload_of(load_project(folder, profiles=False)))
    for selection in SELECTIONS:
        answer = flow.answer(0, selection)["classify"]
        assert answer.dtype == np.float32
        assert np.allclose(answer, wanted(folder), atol=1e-6)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ProfilesDocument]:
    folder = make_project(tmp_path_factory.mktemp("profiled") / "flowers")
    document = measured_profiles(folder, SELECTIONS)
    write_profiles(folder / "profiles.yaml", document)
    return folder, document


def plan_of(folder: Path, selection: Mapping[str, str]) -> Plan:
    """The plan with these variants."""
    overrides = [f"operators.{name}.variants=[{variant}]" for name, variant in selection.items()]
    outcome = solve(build_problem(load_project(folder, overrides)))
    assert outcome.plan is not None
    return outcome.plan


@pytest.mark.parametrize("selection", SELECTIONS)
def test_agents_wire_the_tensors_as_the_variant_names_them(
    profiled: tuple[Path, ProfilesDocument], selection: Mapping[str, str]
) -> None:
    folder = profiled[0]
    view = plan_view(to_document(plan_of(folder, selection)))
    (worker,) = view.serving
    executors = load_executors(view, worker, ModelSettings(folder))
    with np.load(folder / "data/heldout.npz") as data:
        sources = {name: data[name][:1] for name in ("left", "right")}
    outputs: dict[str, np.ndarray] = {}
    for name, operator in view.operators.items():
        inputs = tuple({**sources, **outputs}[upstream] for upstream, _ in operator.wiring.inputs)
        (found,) = run_items(operator, executors[name], [WorkItem(0, "r", 0, (), inputs)]).outputs
        (outputs[name],) = found.by_downstream.values()
    assert np.allclose(outputs["classify"], wanted(folder), atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "left: minuend",
            "lft: minuend",
            "exported.inputs: 'lft' is none of the operator's inputs (did you mean 'left'?)",
        ),
        ("left: minuend", "left: minuent", "inputs.left: 'minuent' is none of its inputs (did you mean 'minuend'?)"),
        ("output: probabilities", "output: probs", "sklearn.output: 'probs' is none of its outputs"),
        ("{features: y}", "{features: z}", "outputs.features: 'z' is none of its outputs (its outputs: y)"),
        (
            "        outputs: {features: y}\n",
            "",
            "if exported only calls it otherwise, write in it outputs: {features: y}",
        ),
        (", output: probabilities", "", "answer differently: 'output' is float32 [n, 3], 'label' is int64 [n]"),
        ("left: minuend", "left: subtrahend", "name each in the variant: inputs: {right: minuend}"),
    ],
)
def test_wrong_names_are_said_with_the_right_ones(folder: Path, old: str, new: str, message: str) -> None:
    assert problems(folder) == []
    replace(folder, old, new)
    assert message in "\n".join(problems(folder))


@pytest.mark.parametrize(
    ("how", "output", "message"),
    [
        (
            {"zipmap": True},
            "probabilities",
            "is a list of maps (ZipMap), which is not served: export with skl2onnx's options",
        ),
        ({"zipmap": True, "labels": "abc"}, "label", "(export it again: it has no output that is served)"),
        ({"labels": "abc"}, "label", "is text, and text (BYTES) is not served: use numbers, such as token ids"),
        ({"labels": "abc"}, "label", "(or send another output: write output: probabilities in sklearn)"),
        ({"labels": "abc"}, "probabilities", ""),
    ],
)
def test_outputs_that_are_no_numbers_are_refused_where_they_are_sent(
    folder: Path, how: dict[str, Any], output: str, message: str
) -> None:
    replace_model(folder, "sklearn", sklearn_classifier(folder / "models/sklearn.onnx", **how))
    replace(folder, "output: probabilities", f"output: {output}")
    found = problems(folder)
    assert len(found) == bool(message)
    assert message in "".join(found)


@pytest.mark.parametrize(("array", "path"), [("left", "sources.left.inputs"), ("labels", "labels")])
def test_held_out_text_is_refused(folder: Path, array: str, path: str) -> None:
    with np.load(folder / "data/heldout.npz") as data:
        np.savez(folder / "data/heldout.npz", **{**dict(data), array: np.array(["text"] * 8)})
    (found,) = problems(folder)
    assert found.startswith(f"{path}: data/heldout.npz#{array} is text, and text (BYTES) is not served: use numbers")


@pytest.mark.parametrize(
    ("array", "step"),
    [
        (np.zeros((8, 4), np.float64), "cast, with: {to: float32, dtype: float64, shape: [4]}"),
        (np.zeros((8, 2, 2), np.float32), "flatten, with: {dtype: float32, shape: [2, 2]}"),
    ],
)
def test_a_tensor_that_a_step_would_convert_is_told_which(folder: Path, array: np.ndarray, step: str) -> None:
    with np.load(folder / "data/heldout.npz") as data:
        np.savez(folder / "data/heldout.npz", **{**dict(data), "left": array})
    assert f"python: jellybean_agent.steps:{step}" in "\n".join(problems(folder))


def changed(folder: Path, document: ProfilesDocument) -> dict[str, list[str]]:
    """Entries of the profiles that no longer hold -> what changed."""
    content = load_project(folder, profiles=False).content
    assert isinstance(content, Content)
    found = content_changes(document, content)
    return {f"{entry.part} {entry.operator} {entry.variant}".strip(): [*map(str, why)] for entry, why in found.items()}


def test_a_variant_that_sends_another_output_is_measured_again(
    profiled: tuple[Path, ProfilesDocument], tmp_path: Path
) -> None:
    document = profiled[1]
    folder = make_project(tmp_path / "flowers")
    assert changed(folder, document) == {}
    replace(folder, "outputs: {features: y}", "outputs: {features: y, other: y}")
    assert changed(folder, document) == {}, "nobody reads the other"
    replace(folder, "left: minuend, right: subtrahend", "left: subtrahend, right: minuend")
    found = changed(folder, document)
    assert {"latency compare exported", "messages compare exported", "accuracy"} <= found.keys()
    was = "minuend from left, subtrahend from right"
    assert found["latency compare exported"] == [f"the input of compare exported was {was}, is now the default"]
