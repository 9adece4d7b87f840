"""The held-out data of drafted documents: the user's arrays, or made up, beside the models that take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from jellybean.documents import (
    load_heldout,
    load_project,
    read_todos,
    write_draft,
)
from jellybean.errors import DocumentError, InputError
from tests.support.exported_models import keep_weights_outside
from tests.unit.documents.draft_models import model, todos_about


def test_data_of_the_user(tmp_path: Path) -> None:
    net = model(tmp_path / "net.onnx", {"image": ["n", 4], "meta": ["n", 2]}, {"scores": ["n", 3]})
    rows = {"image": np.ones((5, 4), np.float32), "meta": np.ones((5, 2), np.float32), "labels": np.arange(5) % 3}
    np.savez(tmp_path / "all.npz", **rows)
    write_draft(tmp_path / "p", [net], tmp_path / "all.npz")
    workflow = load_project(tmp_path / "p", profiles=False).workflow
    assert (workflow.labels, workflow.metric) == ("data/heldout.npz#labels", "top1")
    assert workflow.sources["meta"].message_bytes == 8
    assert not any("random" in todo.text for todo in read_todos(tmp_path / "p"))


def test_arrays_of_other_names_than_the_sources(tmp_path: Path) -> None:
    """An array that only one source can take is a guess; where several fit, or none, a TODO names the candidates."""
    net = model(tmp_path / "net.onnx", {"image": ["n", 4], "meta": ["n", 2]}, {"scores": ["n", 3]})
    rows = {"pictures": np.ones((5, 4), np.float32), "meta": np.ones((5, 2), np.float32), "other": np.ones((5, 7))}
    np.savez(tmp_path / "one.npz", **rows)
    assert write_draft(tmp_path / "one", [net], tmp_path / "one.npz").array_of == {"image": "pictures", "meta": "meta"}
    assert (
        load_project(tmp_path / "one", profiles=False).workflow.sources["image"].inputs == "data/heldout.npz#pictures"
    )
    (guess,) = todos_about(tmp_path / "one", "only this one fits")
    assert guess.startswith("check that source image sends array data/heldout.npz#pictures")
    np.savez(tmp_path / "two.npz", **rows, drawings=np.ones((5, 4)), maps=np.ones((5, 4), np.float32))
    assert write_draft(tmp_path / "two", [net], tmp_path / "two.npz").array_of == {"meta": "meta"}
    (missing,) = todos_about(tmp_path / "two", "would fit")
    arrays = [f"data/heldout.npz#{name} ({kind})" for name, kind in (("pictures", "float32"), ("drawings", "float64"))]
    assert f"{' or '.join(arrays)} or data/heldout.npz#maps (float32) would fit image float32[?, 4]" in missing
    with np.load(tmp_path / "two/data/heldout.npz") as kept:
        assert sorted(kept) == ["drawings", "maps", "meta", "pictures"], "what may be named is there"
    np.savez(tmp_path / "none.npz", meta=rows["meta"], other=rows["other"])
    assert write_draft(tmp_path / "none", [net], tmp_path / "none.npz").array_of == {"meta": "meta"}
    (missing,) = todos_about(tmp_path / "none", "no array")
    assert "no array of the data fits image float32[?, 4]" in missing
    with pytest.raises(DocumentError) as raised:
        load_project(tmp_path / "none", profiles=False)
    assert [(problem.path, problem.hint) for problem in raised.value.problems] == [("sources.image.inputs", missing)]


def test_data_without_an_array_for_an_ambiguous_input_drafts_that_source_as_a_todo(tmp_path: Path) -> None:
    """Which filter a classifier follows is unclear, so its input is a source, for which the user's data has nothing."""
    filters = [model(tmp_path / f"{name}.onnx", {"x": ["n", 3, 8, 8]}, {"y": ["n", 5]}) for name in ("blur", "sharpen")]
    last = model(tmp_path / "label.onnx", {"x": ["n", 5]}, {"y": ["n", 2]})
    np.savez(tmp_path / "data.npz", pictures=np.ones((6, 3, 8, 8), np.float32), labels=np.zeros(6, np.int64))
    written = write_draft(tmp_path / "p", [*filters, last], tmp_path / "data.npz")
    assert list(written.array_of.values()) == ["pictures"]
    (missing,) = todos_about(tmp_path / "p", "no array of the data fits")
    assert "If label should read an operator's output instead, write that, and remove" in missing
    (doubt,) = todos_about(tmp_path / "p", "could also be the output of")
    assert "blur or sharpen" in doubt


@pytest.mark.parametrize(("rows", "axes"), [((3, 8, 6), None), ((8, 6, 3), "array.transpose(0, 3, 1, 2)")])
def test_pictures_in_another_layout_than_the_models_are_said(
    tmp_path: Path, rows: tuple[int, ...], axes: str | None
) -> None:
    net = model(tmp_path / "net.onnx", {"picture": ["n", 3, "h", "w"]}, {"scores": ["n", 2]})
    np.savez(tmp_path / "data.npz", picture=np.ones((5, *rows), np.float32))
    write_draft(tmp_path / "p", [net], tmp_path / "data.npz")
    said = todos_about(tmp_path / "p", "does not fit")
    assert [axes in text and "channels_first" in text for text in said] == ([True] if axes else [])
    edit = (
        (tmp_path / "p/workflow.yaml").read_text(encoding="utf-8").replace("heldout.npz#picture}", "other.npz#picture}")
    )
    (tmp_path / "p/workflow.yaml").write_text(edit, encoding="utf-8")
    assert [todo.text for todo in read_todos(tmp_path / "p") if todo.resolved_reason] == said


def test_data_that_lies_in_the_folder_is_neither_overwritten_nor_copied(tmp_path: Path) -> None:
    net = model(tmp_path / "net.onnx", {"image": ["n", 4]}, {"scores": ["n", 3]})
    file = tmp_path / "data" / "heldout.npz"
    file.parent.mkdir()
    np.savez(file, pictures=np.ones((5, 4), np.float32))
    with pytest.raises(InputError, match="exists and would be overwritten; move it away, or give it with --data"):
        write_draft(tmp_path, [net])
    before = file.read_bytes()
    write_draft(tmp_path, [net], file)
    assert file.read_bytes() == before
    assert load_project(tmp_path, profiles=False).workflow.sources["image"].inputs == "data/heldout.npz#pictures"


def test_inputs_that_cannot_be_made_up_are_still_to_be_written(tmp_path: Path) -> None:
    for kind in (TensorProto.STRING, TensorProto.BFLOAT16):
        net = model(tmp_path / "net.onnx", {"words": ["n", 4]}, {"scores": ["n", 3]}, kind)
        written = write_draft(tmp_path / str(kind), [net])
        assert written.array_of == {}
        with pytest.raises(DocumentError) as raised:
            load_project(tmp_path / str(kind), profiles=False)
        problems = {problem.path: problem.hint for problem in raised.value.problems}
        assert "saved with numpy.savez: data/heldout.npz#words" in problems["sources.words.inputs"]


def test_data_files_of_one_name_stay_with_their_models(tmp_path: Path) -> None:
    hashes = {}
    for name, weight in (("alpha", 1.0), ("beta", 2.0)):
        path = tmp_path / "nets" / name / "model.onnx"
        path.parent.mkdir(parents=True)
        shape = [helper.make_tensor_value_info(port, TensorProto.FLOAT, ["n", 4]) for port in "xy"]
        weights = [numpy_helper.from_array(np.full((1, 4), weight, np.float32), "w")]
        graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], name, shape[:1], shape[1:], weights)
        save_model(helper.make_model(graph, ir_version=9), str(path))
        hashes[name] = keep_weights_outside(path)
    write_draft(tmp_path / "p", [tmp_path / "nets"])
    operators = load_project(tmp_path / "p", profiles=False).workflow.operators
    written = {spec.model: spec.sha256 for one in operators.values() for spec in one.variants.values()}
    assert written == {f"models/{name}/{name}.onnx": sha256 for name, sha256 in hashes.items()}
    write_draft(tmp_path / "one", [tmp_path / "nets/alpha/model.onnx"])
    assert (tmp_path / "one/models/alpha.onnx").is_file()
    (tmp_path / "two/models").mkdir(parents=True)
    (tmp_path / "two/models/model.onnx.data").touch()
    with pytest.raises(InputError, match=r"model.onnx.data exists; move it away"):
        write_draft(tmp_path / "two", [tmp_path / "nets/alpha/model.onnx"])
    assert not (tmp_path / "two/models/alpha.onnx").exists()


@pytest.mark.parametrize("name", ["file", "allow_pickle", "self", "a/b", "TODO", "x[0]", "#1", "a\nb", "日本"])
def test_inputs_with_any_name_have_held_out_data(tmp_path: Path, name: str) -> None:
    path = model(tmp_path / "m.onnx", {name: ["n", 3]}, {"y": ["n", 3]})
    write_draft(tmp_path / "p", [path])
    (source,) = load_project(tmp_path / "p", profiles=False).workflow.sources.values()
    assert source.inputs is not None


def test_inputs_called_labels_are_no_labels(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", {"labels": ["n", 3]}, {"y": ["n", 3]})
    np.savez(tmp_path / "data.npz", labels=np.ones((4, 3), np.float32))
    for folder, data in (("random", None), ("data", tmp_path / "data.npz")):
        write_draft(tmp_path / folder, [path], data)
        workflow = load_project(tmp_path / folder, profiles=False).workflow
        assert (workflow.labels, workflow.sources["labels"].inputs) == (None, "data/heldout.npz#labels")


@pytest.mark.parametrize("dtype", [">f4", "<f4", "=f4"])
def test_held_out_data_has_its_values_in_any_byte_order(tmp_path: Path, dtype: str) -> None:
    path = model(tmp_path / "m.onnx", {"x": ["n", 3]}, {"y": ["n", 3]})
    rows = np.arange(12).reshape(4, 3)
    np.savez(tmp_path / "data.npz", x=np.asfortranarray(rows.astype(dtype)), labels=np.array([2] * 4, ">i8"))
    write_draft(tmp_path / "p", [path], tmp_path / "data.npz")
    held_out = load_heldout(load_project(tmp_path / "p", profiles=False))
    (inputs,) = held_out.inputs.values()
    assert inputs.dtype.isnative and held_out.labels.dtype.isnative
    assert (inputs.tolist(), held_out.labels.tolist()) == (rows.tolist(), [2] * 4)
