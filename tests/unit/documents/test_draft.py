"""Documents from ONNX files: operators and variants by names, edges by names and shapes, the rest as TODOs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from jellybean.documents import (
    load_project,
    outdated_port_comments,
    read_todos,
    remove_todos,
    rewrite_port_comments,
    write_blank,
    write_draft,
    write_hashes,
    wrong_hashes,
)
from jellybean.documents.draft.models import group_variants, model_name, read_models
from jellybean.documents.draft.wiring import Draft
from jellybean.errors import DocumentError, InputError
from tests.support.exported_models import sklearn_classifier
from tests.support.paths import EXAMPLES
from tests.unit.documents.draft_models import Shape, drafted, model, todos_about

DIGITS = sorted((EXAMPLES / "digits" / "models").glob("*.onnx"))


def edges(draft: Draft) -> dict[str, list[str]]:
    """Operator -> its edges as text; those that are guesses end in `?`."""
    return {
        name: [f"{edge.upstream} {edge.kind.value}{'?' * bool(edge.guess)}" for edge in found]
        for name, found in draft.edges.items()
    }


def variants(*files: Path) -> dict[str, list[str]]:
    return {operator.name: list(operator.variants) for operator in group_variants(read_models(files))}


def test_the_digits_example_from_its_models() -> None:
    draft = drafted(*DIGITS)
    assert {operator.name: sorted(operator.variants) for operator in draft.operators} == {
        "find": ["find"],
        "shape": ["cnn-large", "cnn-large-int8", "cnn-small", "mlp"],
        "strokes": ["cnn", "cnn-int8", "linear"],
        "read": ["read"],
        "number": ["number"],
    }
    assert edges(draft) == {
        "find": ["strip each"],
        "shape": ["find fan_out?"],
        "strokes": ["find fan_out?"],
        "read": ["shape each", "strokes each"],
        "number": ["read gather"],
    }
    assert [(source.name, source.tensor.dtype, source.tensor.shape) for source in draft.sources] == [
        ("strip", "uint8", (1, 16, 96))
    ]
    assert draft.sinks == ("number",)


def test_variants_have_names_that_begin_alike_and_the_same_tensors(tmp_path: Path) -> None:
    alike = [
        model(tmp_path / f"{name}.onnx", {"x": ["n", 8]}, {"y": ["n", 3]})
        for name in ("resnet18", "resnet152", "cat", "cat-int8", "detect-small", "detect-smart", "deter")
    ]
    other = model(tmp_path / "detect-wide.onnx", {"x": ["n", 16]}, {"y": ["n", 3]})
    fixed = model(tmp_path / "cat-fp32.onnx", {"a": [1, 8]}, {"b": [1, 3]})
    assert variants(*alike, other, fixed) == {
        "cat": ["cat", "fp32", "int8"],
        "deter": ["deter"],
        "detect": ["small", "smart"],
        "detect-wide": ["detect-wide"],
        "resnet": ["resnet152", "resnet18"],
    }


def test_files_called_model_have_the_names_of_their_folders(tmp_path: Path) -> None:
    assert model_name(tmp_path / "bert small" / "onnx" / "model.onnx") == "bert-small"
    assert model_name(tmp_path / "bert" / "model_quantized.onnx") == "bert_quantized"
    assert model_name(tmp_path / "bert" / "modelling.onnx") == "modelling"
    twice = [model(tmp_path / folder / "a.onnx", {"x": [1, 2]}, {"y": [1, 2]}) for folder in ("one", "two")]
    with pytest.raises(InputError, match="would both be called a"):
        read_models(twice)


def test_a_chain_by_shapes_is_a_guess_and_one_by_names_is_not(tmp_path: Path) -> None:
    embed = model(tmp_path / "embed.onnx", {"input.1": ["n", 3, 32, 32]}, {"feature": ["n", 64]})
    by_shape = model(tmp_path / "score.onnx", {"input": ["n", 64]}, {"out": ["n", 10]})
    by_name = model(tmp_path / "rank.onnx", {"feature": ["n", 64]}, {"out": ["n", 5]})
    draft = drafted(embed, by_shape, by_name)
    assert edges(draft) == {"embed": ["input each"], "score": ["embed each?"], "rank": ["embed each"]}
    assert draft.sinks == ("rank", "score")


def test_what_is_ambiguous_is_a_source_with_a_doubt(tmp_path: Path) -> None:
    """Filters that may come in any order, and a classifier that may follow either."""
    filters = [
        model(tmp_path / f"{name}.onnx", {"x": ["n", 3, 8, 8]}, {"y": ["n", 3, 8, 8]}) for name in ("blur", "sharpen")
    ]
    draft = drafted(*filters, model(tmp_path / "label.onnx", {"x": ["n", 3, 8, 8]}, {"y": ["n", 2]}))
    assert edges(draft) == {"blur": ["input each?"], "label": ["input each?"], "sharpen": ["input each?"]}
    assert "blur or sharpen" in draft.edges["label"][0].guess


def test_inputs_of_one_model_never_share_a_source_or_an_upstream(tmp_path: Path) -> None:
    text = {"input_ids": ["b", "s"], "attention_mask": ["b", "s"]}
    encode = model(tmp_path / "encode.onnx", text, {"pooled": ["b", 8]}, TensorProto.INT64)
    other = model(tmp_path / "tag.onnx", text, {"tags": ["b", 4]}, TensorProto.INT64)
    compare = model(tmp_path / "compare.onnx", {"a": ["n", 8], "b": ["n", 8]}, {"same": ["n", 1]}, TensorProto.INT64)
    draft = drafted(encode, other, compare)
    assert edges(draft)["encode"] == edges(draft)["tag"] == ["input_ids each", "attention_mask each"]
    assert edges(draft)["compare"] == ["encode each?", "b each"]
    join = model(tmp_path / "join.onnx", {"left": ["n", 4], "right": ["n", 4]}, {"y": ["n", 2]}, TensorProto.INT64)
    both = drafted(other, model(tmp_path / "vote.onnx", text, {"tags": ["b", 4]}, TensorProto.INT64), join)
    assert edges(both)["join"] == ["tag each?", "vote each?"]


@pytest.mark.parametrize("names", ["x{}", "input.{}", "onnx::Add_{}", "a" * 60 + "{}", "/"])
def test_many_inputs_have_names_of_their_own_that_documents_accept(tmp_path: Path, names: str) -> None:
    """Names of exporters, alike in their first forty letters, or of no letters."""
    sizes: dict[str, Shape] = {names.format(number) + "/" * (names == "/") * number: ["n", 3] for number in range(30)}
    path = model(tmp_path / "m.onnx", sizes, {"y": ["n", 3]})
    write_draft(tmp_path / "p", [path])
    sources = load_project(tmp_path / "p", profiles=False).workflow.sources
    assert len(sources) == len(sizes) == 30


def test_rows_of_their_own_are_children(tmp_path: Path) -> None:
    frame: Shape = [1, 3, 8, 8]
    four = model(tmp_path / "tile.onnx", {"x": frame}, {"tiles": [4, 3, 4, 4]})
    child = model(tmp_path / "read.onnx", {"tile": ["n", 3, 4, 4]}, {"word": ["n", 6]})
    total = model(tmp_path / "total.onnx", {"read": ["n", 6]}, {"y": [1, 6]})
    join = model(tmp_path / "join.onnx", {"word": ["n", 6], "frame": frame}, {"z": ["n", 9]})
    draft = drafted(four, child, total, join)
    assert draft.edges["read"][0].ratio == 4
    assert edges(draft)["total"] == ["read gather"]
    assert edges(draft)["join"] == ["read gather?", "frame each"]
    numbered = model(tmp_path / "same.onnx", {"x": ["batch", 5]}, {"y": ["Gemm_dim_0", 7]})
    after = model(tmp_path / "after.onnx", {"same": ["batch", 7]}, {"y": ["batch", 2]})
    assert edges(drafted(numbered, after))["after"] == ["same each"]  # an exporter's own name for a size


def test_an_output_that_variants_name_unlike(tmp_path: Path) -> None:
    for name, output in (("tell-a", "probabilities"), ("tell-b", "output_2")):
        model(tmp_path / f"nets/{name}.onnx", {"x": ["n", 4]}, {"label": ["n"], output: ["n", 6]})
    model(tmp_path / "nets/fuse.onnx", {"scores": ["n", 6]}, {"y": ["n", 6]})
    write_draft(tmp_path / "p", [tmp_path / "nets"])
    workflow = load_project(tmp_path / "p", profiles=False).workflow
    assert [edge.output for edge in workflow.operators["fuse"].inputs] == ["probabilities"]
    assert workflow.operators["tell"].variants["b"].outputs == {"probabilities": "output_2"}
    assert not workflow.operators["tell"].variants["a"].outputs


def test_a_project_that_is_valid_with_a_todo_for_each_guess(tmp_path: Path) -> None:
    models = [path for path in DIGITS if path.stem not in ("shape-cnn-large", "shape-cnn-large-int8", "strokes-cnn")]
    written = write_draft(tmp_path / "my digits!", models)
    project = load_project(tmp_path / "my digits!", profiles=False)
    assert project.workflow.name == "my-digits"
    assert sum(len(spec.variants) for spec in project.workflow.operators.values()) == len(models)
    assert written.array_of == {"strip": "strip"}
    texts = [todo.text for todo in read_todos(project.directory)]
    assert [text.split(":")[0] for text in texts] == [
        "tier, rate and message of each source",
        "the held-out inputs of strip are random numbers, which is enough for latencies, but not for accuracy and "
        "numbers of children",
        "check that shape reads {from",
        "check that strokes reads {from",
        "without labels all variants count as equally accurate, and plans take the cheapest",
        "the targets; without one, the plan is the cheapest that sustains the rates",
        "your machines",
        "the network between the tiers",
    ]
    with pytest.raises(InputError, match="is a project already: it has workflow"):
        write_draft(project.directory, models)


def test_models_in_the_folder_stay_where_they_are_and_odd_names_are_quoted(tmp_path: Path) -> None:
    lies = model(tmp_path / "p" / "nets" / "on.onnx", {"1": [1, 4]}, {"y": [1, 2]})
    write_draft(tmp_path / "p", [lies, model(tmp_path / "12.onnx", {"on": [1, 2]}, {"z": [1, 3]})])
    operators = load_project(tmp_path / "p", profiles=False).workflow.operators
    assert operators["on"].variants["on"].model == "nets/on.onnx"
    assert operators["12"].variants["12"].model == "models/12.onnx"
    assert [edge.upstream for edge in operators["12"].inputs] == ["on"]


def test_a_classifier_whose_first_output_is_the_label(tmp_path: Path) -> None:
    """As skl2onnx writes them: the draft sends the probabilities, and says what became of the label and of maps."""
    for name, how in {"ints": {}, "words": {"labels": "abc"}}.items():
        sklearn_classifier(tmp_path / f"{name}/forest.onnx", **how)
        np.savez(tmp_path / "data.npz", X=np.ones((6, 4), np.float32), labels=np.arange(6) % 3)
        write_draft(tmp_path / f"p-{name}", [tmp_path / name], tmp_path / "data.npz")
        workflow = load_project(tmp_path / f"p-{name}", profiles=False).workflow
        assert workflow.operators["forest"].variants["forest"].output == "probabilities"
        assert workflow.metric == "top1"
        checks = todos_about(tmp_path / f"p-{name}", "answers with probabilities")
        assert len(checks) == (name == "ints"), "text cannot be sent, so there is nothing to choose"
    sklearn_classifier(tmp_path / "maps/forest.onnx", zipmap=True)
    write_draft(tmp_path / "p-maps", [tmp_path / "maps"])
    assert (
        load_project(tmp_path / "p-maps", profiles=False).workflow.operators["forest"].variants["forest"].output is None
    )
    (zipmap,) = todos_about(tmp_path / "p-maps", "ZipMap")
    assert "output probabilities of forest" in zipmap
    sklearn_classifier(tmp_path / "p-maps/models/forest.onnx")
    assert not any(todo.resolved_reason for todo in read_todos(tmp_path / "p-maps"))
    write_hashes(wrong_hashes(tmp_path / "p-maps"))
    assert [todo.text for todo in read_todos(tmp_path / "p-maps") if todo.resolved_reason] == [zipmap]
    assert "options={'zipmap': False}" in zipmap


def test_a_zipmap_that_was_exported_anew_leaves_no_false_comment_and_asks_for_the_scores(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    sklearn_classifier(tmp_path / "nets/risk.onnx", zipmap=True)
    model(tmp_path / "nets/decide.onnx", {"risk": ["n", 3], "note": ["n", 2]}, {"y": ["n", 3]})
    write_draft(folder, [tmp_path / "nets"])
    (doubt,) = todos_about(folder, "probably")
    assert doubt == (
        "check that decide reads risk_input: it is probably operator risk, whose scores are a list of maps (ZipMap) so "
        "far: once it is exported with a tensor, write risk in place of risk_input, and remove source risk_input; if "
        "not, change it"
    )
    np.savez(tmp_path / "data.npz", X=np.ones((6, 4), np.float32), note=np.ones((6, 2), np.float32))
    write_draft(tmp_path / "p-data", [tmp_path / "nets"], tmp_path / "data.npz")
    (source,) = todos_about(tmp_path / "p-data", "held-out inputs of risk_input")
    assert (
        "It is probably operator risk once its ZipMap is exported as a tensor: then write risk in the inputs of "
        "decide, and remove risk_input; then write it"
    ) in source
    assert outdated_port_comments(folder) == ()
    sklearn_classifier(folder / "models/risk.onnx")
    write_hashes(wrong_hashes(folder))
    (comment,) = outdated_port_comments(folder)
    assert (comment.operator, comment.before.partition(" -> ")[2]) == (
        "risk",
        "label int64[?], probabilities seq(map(int64,tensor(float)))",
    )
    rewrite_port_comments([comment])
    assert outdated_port_comments(folder) == ()
    text = (folder / "workflow.yaml").read_text(encoding="utf-8")
    assert "  risk:  # X float32[?, 4] -> label int64[?], probabilities float32[?, 3]\n" in text
    left = "check that risk answers with label, the class: to answer with the scores, write output: probabilities"
    (removed,) = remove_todos(read_todos(folder))
    assert removed.follow_up == f"{left} in variant risk"
    (todo,) = (todo for todo in read_todos(folder) if todo.text == removed.follow_up)
    assert not todo.resolved_reason
    text = (folder / "workflow.yaml").read_text(encoding="utf-8")
    (folder / "workflow.yaml").write_text(
        re.sub(r"(models/risk.onnx, sha256: \w+)", r"\1, output: probabilities", text), encoding="utf-8"
    )
    assert [todo.text for todo in read_todos(folder) if todo.resolved_reason] == [removed.follow_up]
    load_project(folder, profiles=False)


def test_an_input_named_like_an_operator_that_does_not_fit_is_wired_to_no_other_by_its_shape(tmp_path: Path) -> None:
    model(tmp_path / "nets/piece.onnx", {"image": [1, 8]}, {"parts": ["parts", 2]})  # several rows of a request
    model(tmp_path / "nets/decide.onnx", {"sensors": ["n", 2], "note": ["n", 5]}, {"y": ["n", 3]})
    model(tmp_path / "nets/sensors.onnx", {"X": ["n", 4]}, {"label": ["n"]}, TensorProto.INT64)
    write_draft(tmp_path / "p", [tmp_path / "nets"])
    assert todos_about(tmp_path / "p", "decide reads") == [
        "check that decide reads sensors_input: it is named like operator sensors, whose output does not fit (int64 "
        "given, float32 expected; 1 dimension given, 2 expected ([n] given, [n, 2] expected)): export sensors with an "
        "output that fits, write sensors in place of sensors_input, and remove source sensors_input; if not, change it"
    ]
    sklearn_classifier(tmp_path / "nets/sensors.onnx", zipmap=True)
    write_draft(tmp_path / "p-maps", [tmp_path / "nets"])
    (todo,) = todos_about(tmp_path / "p-maps", "decide reads")
    assert todo.startswith("check that decide reads sensors_input: it is probably operator sensors, whose scores are a")
    load_project(tmp_path / "p-maps", profiles=False)


def test_an_input_named_like_an_operator_that_was_exported_anew_fits_it(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    sklearn_classifier(tmp_path / "nets/sensors.onnx", zipmap=True)
    model(tmp_path / "nets/decide.onnx", {"note": ["n", 5], "sensors": ["n", 3]}, {"y": ["n", 3]})
    write_draft(folder, [tmp_path / "nets"])
    assert {todo.fits_now for todo in read_todos(folder)} == {""}
    sklearn_classifier(folder / "models/sensors.onnx")
    write_hashes(wrong_hashes(folder))
    fits = {todo.text.partition(":")[0]: todo.fits_now for todo in read_todos(folder) if todo.fits_now}
    assert fits == {
        "check that decide reads sensors_input": "sensors fits now: write {from: sensors, output: probabilities}"
    }
    file = folder / "workflow.yaml"
    text = file.read_text(encoding="utf-8")
    named = re.sub(r"(models/sensors.onnx, sha256: \w+)", r"\1, output: probabilities", text)
    file.write_text(named, encoding="utf-8")
    assert {todo.fits_now for todo in read_todos(folder)} == {"", "sensors fits now: write sensors"}
    text = re.sub(r"  sensors_input: .*\n", "", text)
    text = text.replace("inputs: [note, sensors_input]", "inputs: [note, {from: sensors, output: probabilities}]")
    file.write_text(text, encoding="utf-8")
    load_project(folder, profiles=False)


def test_variants_that_were_exported_anew_get_one_todo_with_all_their_names(tmp_path: Path) -> None:
    folder, file = tmp_path / "p", tmp_path / "p/workflow.yaml"
    for name in ("boost", "logreg"):
        sklearn_classifier(tmp_path / f"nets/sensors-{name}.onnx", zipmap=True)
    write_draft(folder, [tmp_path / "nets"])
    for name in ("boost", "logreg"):  # one after the other: nothing is asked while a ZipMap is left
        assert todos_about(folder, "the class") == []
        sklearn_classifier(folder / f"models/sensors-{name}.onnx")
        write_hashes(wrong_hashes(folder))
        remove_todos(read_todos(folder))
    left = (
        "check that sensors answers with label, the class: to answer with the scores, write output: probabilities in "
        "variants boost and logreg"
    )
    assert todos_about(folder, "the class") == [left]
    for name in ("boost", "logreg"):
        assert not any(todo.resolved_reason for todo in read_todos(folder))
        text = file.read_text(encoding="utf-8")
        changed = re.sub(rf"(sensors-{name}.onnx, sha256: \w+)", r"\1, output: probabilities", text)
        file.write_text(changed, encoding="utf-8")
    assert [todo.text for todo in read_todos(folder) if todo.resolved_reason] == [left]


def test_variants_that_were_exported_anew_together_get_one_todo(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    for name in ("boost", "logreg"):
        sklearn_classifier(tmp_path / f"nets/sensors-{name}.onnx", zipmap=True)
    write_draft(folder, [tmp_path / "nets"])
    for name in ("boost", "logreg"):
        sklearn_classifier(folder / f"models/sensors-{name}.onnx")
    write_hashes(wrong_hashes(folder))
    assert len(remove_todos(read_todos(folder))) == 2
    (todo,) = todos_about(folder, "the class")
    assert todo.endswith("in variants boost and logreg")


def test_comments_that_a_person_wrote_on_an_operator_are_left_alone(tmp_path: Path) -> None:
    write_draft(tmp_path / "p", [model(tmp_path / "net.onnx", {"x": ["n", 4]}, {"y": ["n", 3]})])
    file = tmp_path / "p/workflow.yaml"
    for comment in ("pictures -> classes", "x float32[?, 4] -> what it is", "my own net", "x float32[?, 9]"):
        text = file.read_text(encoding="utf-8")
        file.write_text(re.sub(r"(?m)^  net:  # .*$", f"  net:  # {comment}", text), encoding="utf-8")
        assert outdated_port_comments(tmp_path / "p") == ()


def test_no_model_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_text("not a model", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    refused = {"a.onnx": "is not an ONNX model", "b.onnx": "cannot be read", "empty": "has no ONNX files"}
    for file, message in ((tmp_path / name, message) for name, message in refused.items()):
        with pytest.raises(InputError, match=message):
            write_draft(tmp_path / "p", [file])
    assert not (tmp_path / "p").exists()


def test_a_blank_project_is_explained_line_by_line(tmp_path: Path) -> None:
    write_blank(tmp_path)
    with pytest.raises(DocumentError) as raised:
        load_project(tmp_path, profiles=False)
    assert {(problem.path, problem.message) for problem in raised.value.problems} == {
        ("sources.input.inputs", "is still to be written (TODO)"),
        ("operators.detect.variants.small.model", "is still to be written (TODO)"),
    }
    assert all(problem.hint for problem in raised.value.problems)


def test_a_folder_of_models_may_have_links_to_files_and_no_endless_depth(tmp_path: Path) -> None:
    file = model(tmp_path / "blobs" / "x", {"x": ["n", 4]}, {"y": ["n", 2]})
    (tmp_path / "models" / "sub").mkdir(parents=True)
    (tmp_path / "models" / "sub" / "label.onnx").symlink_to(file)
    (tmp_path / "models" / "all").symlink_to(tmp_path)
    assert [one.name for one in read_models([tmp_path / "models"])] == ["label"]
    (tmp_path / "models" / Path(*["deep"] * 70)).mkdir(parents=True)
    with pytest.raises(InputError, match="more than 64 folders in each other"):
        read_models([tmp_path / "models"])
