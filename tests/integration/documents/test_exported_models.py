"""Models as exporters write them: variants that name their tensors differently, from the documents to the agent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from jellybean.documents import (
    Content,
    KubernetesDocument,
    ProfilesDocument,
    build_problem,
    content_changes,
    load_project,
    load_settings,
    write_draft,
    write_profiles,
)
from jellybean.errors import DocumentError, InputError
from jellybean.operator import to_resource
from jellybean.operator.resource import lay_out, stated_profiles
from jellybean.pipeline import OnnxGraph, find_layers
from jellybean.profiler.flow import Flow
from jellybean.profiler.project import workload_of
from jellybean_agent import file_sha256, plan_view
from jellybean_agent.brain.messages import WorkItem
from jellybean_agent.process.model_loading import ModelSettings, load_executors
from jellybean_agent.worker.run_outputs import run_items
from jellybean_k8s import deployed_plan, render
from jellybean_solver import Plan, from_document, solve, to_document
from tests.k8s_resource import resource
from tests.support.exported_models import (
    CLASSES,
    keep_weights_outside,
    make_project,
    replace,
    replace_model,
    sklearn_classifier,
    tensor,
    write,
)
from tests.support.measured_project import measured_profiles

SELECTIONS = [
    {"compare": compare, "classify": classify}
    for compare, classify in product(("plain", "exported"), ("torch", "sklearn"))
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_project(tmp_path / "flowers")


def add_label(folder: Path) -> None:
    """Give the variant `exported` another first output, a label."""
    path = folder / "models/exported.onnx"
    before = file_sha256(path)
    write(
        path,
        [
            helper.make_node("ArgMax", ["minuend"], ["label"], axis=1, keepdims=0),
            helper.make_node("Sub", ["minuend", "subtrahend"], ["y"]),
        ],
        {"subtrahend": ["n", 4], "minuend": ["n", 4]},
        [tensor("label", TensorProto.INT64, ["n"]), tensor("y", TensorProto.FLOAT, ["n", 4])],
    )
    replace(folder, before, file_sha256(path))


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
            "if exported only calls it otherwise, write in it outputs: {features: 'y'}",
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
    ("old", "new", "message"),
    [
        ("{from: compare, output: features}", "{from: compar, output: features}", "no source or operator 'compar'"),
        ("{from: compare, output: features}", "{from: zzz}", "no source or operator 'zzz'"),
        ("output: features}]", "output: features, gather: true}]", "no fan-out is open"),
        ("inputs: [left, right]", "inputs: [left, zzz]", "no source or operator 'zzz'"),
    ],
)
def test_an_edge_with_an_error_is_the_only_problem(folder: Path, old: str, new: str, message: str) -> None:
    """`compare` feeds `classify` whatever is wrong with an edge, so its variants answer nobody."""
    add_label(folder)
    assert problems(folder) == []
    replace(folder, old, new)
    (problem,) = problems(folder)
    assert message in problem


@pytest.mark.parametrize(
    ("how", "output", "message"),
    [
        (
            {"zipmap": True},
            "probabilities",
            "is a list of maps (ZipMap), which is not served: export with skl2onnx's options",
        ),
        (
            {"zipmap": True, "labels": "abc"},
            "label",
            "(export it again: it has no output that is served; output probabilities is a list of maps (ZipMap), "
            "which is not served: export with skl2onnx's options={'zipmap': False}",
        ),
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
        (
            np.zeros((8, 4), np.float16),
            "cast, with: {to: float32, dtype: float16, shape: [4]}, or convert the model",
        ),
        (np.zeros((8, 2, 2), np.float32), "flatten, with: {dtype: float32, shape: [2, 2]}"),
    ],
)
def test_a_tensor_that_a_step_would_convert_is_told_which(folder: Path, array: np.ndarray, step: str) -> None:
    with np.load(folder / "data/heldout.npz") as data:
        np.savez(folder / "data/heldout.npz", **{**dict(data), "left": array})
    text = "\n".join(problems(folder))
    assert f"python: jellybean_agent.steps:{step.partition(', or')[0]}" in text
    assert step.rpartition("}")[2] in text


def apply_step(folder: Path, text: str) -> None:
    """Write the operator that a message offers, and the edge to it."""
    found = re.search(r"under operators (\S+: \{.*?\}\}\}\}), and (.*?) in place of (.*?)[,)]", text)
    assert found is not None, text
    operator, reader, edge = found.groups()
    replace(folder, f"[{edge}", f"[{reader}")
    replace(folder, "operators:\n", f"operators:\n  {operator}\n")


@pytest.mark.parametrize(
    ("array", "wanted", "step", "save"),
    [
        (np.ones((4, 8, 6, 3), np.float32), [3, 8, 6], "channels_first", "array.transpose(0, 3, 1, 2)"),
        (np.ones((4, 3, 8, 6), np.float32), [8, 6, 3], "channels_last", "array.transpose(0, 2, 3, 1)"),
        (np.ones((4, 5), np.float64), [5], "cast", "array.astype('float32')"),
        (np.ones((4, 8, 6), np.float32), [48], "flatten", "array.reshape(len(array), 48)"),
        (np.ones((4, 48), np.float32), [1, 8, 6], "reshape", "array.reshape(len(array), 1, 8, 6)"),
    ],
)
def test_the_step_and_the_array_that_a_message_offers_are_right_as_they_stand(
    array: np.ndarray, wanted: list[int], step: str, save: str, tmp_path: Path
) -> None:
    identity = [helper.make_node("Identity", ["x"], ["y"])]
    write(tmp_path / "net.onnx", identity, {"x": ["n", *wanted]}, [tensor("y", TensorProto.FLOAT, ["n", *wanted])])
    array = array * np.random.default_rng(0).random(array.shape).astype(array.dtype)
    np.savez(tmp_path / "data.npz", x=array)
    folder = tmp_path / "p"
    write_draft(folder, [tmp_path / "net.onnx"], tmp_path / "data.npz")
    (text,) = problems(folder)
    assert f"or save the held-out inputs as {save}" in text
    apply_step(folder, text)
    assert problems(folder) == []
    flow = Flow(workload_of(load_project(folder, profiles=False)))
    answer = flow.answer(0, {f"input_{step}": step, "net": "net"})["net"]
    assert np.array_equal(answer, eval(save, {"array": array})[:1])


@pytest.mark.parametrize("name", ["495", "a: b", "x, y"])
def test_the_step_that_a_message_offers_quotes_the_name_of_an_output(name: str, tmp_path: Path) -> None:
    outputs = [tensor(port, TensorProto.FLOAT, ["n", 4]) for port in ("z", name)]
    write(tmp_path / "one.onnx", [helper.make_node("Split", ["x"], ["z", name], axis=1)], {"x": ["n", 8]}, outputs)
    pairs = [tensor("y", TensorProto.FLOAT, ["n", 2, 2])]
    write(tmp_path / "two.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": ["n", 2, 2]}, pairs)
    folder = tmp_path / "p"
    write_draft(folder, [tmp_path / "one.onnx", tmp_path / "two.onnx"])
    edge = f"{{from: one, output: '{name}'}}"
    replace(folder, "inputs: [two_input]", f"inputs: [{edge}]")
    workflow = (folder / "workflow.yaml").read_text(encoding="utf-8")
    kept = [line for line in workflow.splitlines(keepends=True) if not line.startswith("  two_input")]
    (folder / "workflow.yaml").write_text("".join(kept), encoding="utf-8")
    (text,) = problems(folder)
    operator = re.search(rf"under operators (\S+: .*?\}}\}}\}}), and one_reshape in place of {re.escape(edge)}", text)
    assert operator is not None, text
    replace(folder, f"[{edge}]", "[one_reshape]")
    replace(folder, "operators:\n", f"operators:\n  {operator[1]}\n")
    assert problems(folder) == []


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


def test_a_name_of_an_output_that_fewer_or_more_variants_need_changes_nothing(folder: Path) -> None:
    """`exported` needs the edge to name the output, as its first one is a label; `plain` has only that output."""
    add_label(folder)
    both = (folder / "workflow.yaml").read_text(encoding="utf-8")
    of_both = measured_profiles(folder, SELECTIONS)
    start, end = both.index("      exported:"), both.index("  classify:")
    (folder / "workflow.yaml").write_text(both[:start] + both[end:], encoding="utf-8")
    of_plain = measured_profiles(folder, SELECTIONS[:2])
    assert changed(folder, of_both) == changed(folder, of_plain) == {}
    (folder / "workflow.yaml").write_text(both, encoding="utf-8")
    assert changed(folder, of_both) == changed(folder, of_plain) == {}


def test_a_model_with_a_data_file_is_one_model(folder: Path) -> None:
    sha256 = keep_weights_outside(folder / "models/torch.onnx")
    (stale,) = problems(folder)
    assert "the file and torch.onnx.data have SHA-256" in stale
    assert f"write {sha256}" in stale
    replace_model(folder, "torch", sha256)
    write_profiles(folder / "profiles.yaml", measured_profiles(folder, SELECTIONS))
    flow = Flow(workload_of(load_project(folder)))
    assert np.allclose(flow.answer(0, SELECTIONS[0])["classify"], wanted(folder), atol=1e-6)
    plan = plan_of(folder, SELECTIONS[0])
    view = plan_view(to_document(plan))
    assert from_document(to_document(plan)) == plan
    names = ("models/torch.onnx", "models/torch.onnx.data")
    assert view.operators["classify"].model_files == tuple((name, file_sha256(folder / name)) for name in names)
    assert load_executors(view, view.serving[0], ModelSettings(folder))
    (model,) = (operator.model for operator in plan.operators if operator.name == "classify")
    assert model is not None
    assert model.size_bytes == sum((folder / name).stat().st_size for name in names)
    data = folder / "models/torch.onnx.data"
    data.rename(folder / "elsewhere")
    (missing,) = problems(folder)
    assert "torch.onnx keeps weights in torch.onnx.data: there is no such file" in missing
    assert "copy every file that the exporter wrote, with its name" in missing
    data.symlink_to("/etc/hostname")
    assert "'models/torch.onnx.data' is outside the project folder" in problems(folder)[0]


def test_a_model_with_a_data_file_is_cut(folder: Path) -> None:
    path = folder / "models/torch.onnx"
    graph = OnnxGraph.load(path)
    keep_weights_outside(path)
    feed = {"input": np.ones((1, 4), np.float32)}
    outside = OnnxGraph.load(path)
    assert outside.observe([feed]) == graph.observe([feed])
    layers = find_layers(outside, outside.observe([feed]))
    assert layers.groups == find_layers(graph, graph.observe([feed])).groups


def test_a_deployment_brings_the_data_files(folder: Path, tmp_path: Path) -> None:
    replace_model(folder, "torch", keep_weights_outside(folder / "models/torch.onnx"))
    write_profiles(folder / "profiles.yaml", measured_profiles(folder, SELECTIONS))
    plan = plan_of(folder, SELECTIONS[0])
    kubernetes = resource()["spec"]["kubernetes"] | {"kind": "Kubernetes", "pools": {}}
    (folder / "kubernetes.yaml").write_text(json.dumps(kubernetes), encoding="utf-8")
    settings = load_settings(folder)
    wanted = {f"{file_sha256(folder / name)}:{name}" for name in ("models/torch.onnx", "models/torch.onnx.data")}
    pods = [one for one in render(deployed_plan(plan, settings)) if one["kind"] == "StatefulSet"]
    fetched = [one["spec"]["template"]["spec"]["initContainers"][0]["args"] for one in pods]
    assert wanted <= {argument for arguments in fetched for argument in arguments}
    asked = to_resource(load_project(folder), KubernetesDocument.model_validate(kubernetes))
    infrastructure, profiles = asked["spec"]["infrastructure"], stated_profiles(asked["spec"])
    (tmp_path / "operator").mkdir()
    in_cluster = lay_out(asked, infrastructure, profiles, tmp_path / "operator").project
    models = {operator.name: operator.variant("torch").model for operator in build_problem(in_cluster).operators[1:]}
    assert {f"{file.sha256}:{file.path}" for model in models.values() if model for file in model.files} == wanted


def test_a_drafted_project_has_the_data_files(folder: Path, tmp_path: Path) -> None:
    sha256 = keep_weights_outside(folder / "models/torch.onnx")
    write_draft(tmp_path / "draft", [folder / "models/torch.onnx"])
    assert sha256 in (tmp_path / "draft/workflow.yaml").read_text(encoding="utf-8")
    assert load_project(tmp_path / "draft", profiles=False).workflow.operators
    (folder / "models/torch.onnx.data").unlink()
    with pytest.raises(InputError, match=r"keeps weights in torch.onnx.data: there is no such file"):
        write_draft(tmp_path / "other", [folder / "models/torch.onnx"])
    assert not (tmp_path / "other/workflow.yaml").exists()
