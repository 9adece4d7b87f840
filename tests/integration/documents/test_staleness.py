"""Profiles that were measured with other content are found, one kind after another, on real files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from jellybean.cli import run
from jellybean.documents import build_problem, load_project, machine_notes
from jellybean.documents.checks.files import sha256_of
from jellybean.errors import DocumentError, StaleProfilesError
from jellybean_agent import this_machine
from tests.support.measured_project import MODULE, STEPS, make_project, positives_above
from tests.support.tiny_models import difference, save, scale

Edit = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project, with its module on the path."""
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / f"{MODULE}.py").write_text(STEPS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "steps"))
    return make_project(tmp_path / "gate")


def replace(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text, old
    (folder / file).write_text(text.replace(old, new), encoding="utf-8")


def retrain(write: Callable[[Path], str], name: str) -> Edit:
    """Write another model over a file, and its new sha256 into workflow.yaml."""

    def edit(folder: Path) -> None:
        path = folder / f"models/{name}.onnx"
        before = sha256_of(path)
        replace(folder, "workflow.yaml", before, write(path))

    return edit


def rewrite(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    """Change one held-out array."""

    def edit(folder: Path) -> None:
        path = folder / "data/heldout.npz"
        with np.load(path) as data:
            arrays = dict(data)
        np.savez(path, **{**arrays, name: change(arrays[name])})

    return edit


def in_file(file: str, old: str, new: str) -> Edit:
    return lambda folder: replace(folder, file, old, new)


def largest(path: Path) -> str:
    """The largest of all children, [n, 1] to [1, 1]."""
    node = helper.make_node("ReduceMax", ["x"], ["y"], axes=[0], keepdims=1)
    return save(path, [node], {"x": ["n", 1]}, ("y", [1, 1]))


def source_of_steps(folder: Path) -> None:
    replace(folder.parent / "steps", f"{MODULE}.py", "* 2 *", "* 3 *")


def by_hand(folder: Path) -> None:
    """An entry written by hand that states the model it is of."""
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    text = re.sub(r"box: \{model: (\w+), speed: 0.5, run: 1\}", r"box: {source: by hand, model: \1}", text)
    (folder / "profiles.yaml").write_text(text, encoding="utf-8")
    retrain(lambda path: scale(path, 3.0, 1), "sum")(folder)


KINDS: dict[str, tuple[Edit, list[str]]] = {
    "a model with its new hash": (
        retrain(lambda path: scale(path, 3.0, 1), "sum"),
        [
            r"sum net \(models/sum.onnx\) was \w{12}, is now \w{12}; stale: latency of sum net and all net on box and "
            r"t4, messages of sum net and all net, accuracy"
        ],
    ),
    "the last model of the graph": (
        retrain(largest, "all"),
        [r"all net .* stale: latency of all net on box and t4, messages of all net, accuracy$"],
    ),
    "the variant that made the inputs of later operators": (
        retrain(lambda path: positives_above(path, 1.2), "few"),
        [r"split few .* stale: latency of split few, sum net and all net on box and t4, messages of .* all net, acc"],
    ),
    "a variant of a fan-out that made no sample inputs": (
        retrain(lambda path: positives_above(path, 0.2), "many"),
        [r"split many .* stale: latency of split many on box and t4, messages of split many, sum net and all net, acc"],
    ),
    "a function's source": (source_of_steps, [r"prepare double \(measured_steps:enlarge, .*\) was .* prepare double"]),
    "a function's arguments": (
        in_file("workflow.yaml", "factor: 1.5", "factor: 1.25"),
        [r"prepare double .* stale: latency of prepare double, split few, split many and 2 more on box and t4"],
    ),
    "held-out inputs": (
        rewrite("left", lambda rows: rows * 2),
        [r"held-out inputs of left was \w{12}, is now \w{12}; stale: latency .* cuts of compare net .* accuracy"],
    ),
    "order of held-out inputs": (
        rewrite("right", lambda rows: rows[::-1].copy()),
        [r"held-out inputs of right .* latency of compare net on box and t4, messages of compare net, cuts"],
    ),
    "fewer held-out requests": (
        lambda folder: [rewrite(name, lambda rows: rows[:5])(folder) for name in ("left", "right", "labels")],
        [r"held-out inputs of left", r"held-out inputs of right", r"labels was"],
    ),
    "type of the held-out labels": (rewrite("labels", lambda rows: rows.astype(np.int32)), [r"labels was .*accuracy$"]),
    "labels": (rewrite("labels", lambda rows: rows + 1), [r"^labels was \w{12}, is now \w{12}; stale: accuracy$"]),
    "metric": (
        in_file("workflow.yaml", "exact_match", "top1"),
        [r"^metric was exact_match, is now top1; stale: accuracy$"],
    ),
    "labels that were compared with another answer": (
        in_file("profiles.yaml", "labels_of: all", "labels_of: compare"),
        [r"^labels_of was compare, is now all; stale: accuracy$"],
    ),
    "labels before there was labels_of": (
        in_file("profiles.yaml", "      labels_of: all\n", ""),
        [r"^labels_of was not given, is now all; stale: accuracy$"],
    ),
    "speed of a type": (
        in_file("infrastructure.yaml", "speed: 0.5", "speed: 0.01"),
        [r"^speed of box was 0.5, is now 0.01; stale: latency of prepare double, .* 3 more on box, cuts of compare"],
    ),
    "a speed that is no longer given": (
        in_file("infrastructure.yaml", ", speed: 0.5", ""),
        [r"^speed of box was 0.5, is now 1 \(none is given\); stale: latency"],
    ),
    "speed of a type with another name than its pool": (
        in_file("infrastructure.yaml", "speed: 1}", "speed: 0.9}"),
        [r"^speed of t4 was 1, is now 0.9; stale: latency of .* on t4"],
    ),
    "kind of an edge": (
        in_file("workflow.yaml", "{from: sum, gather: true}", "sum"),
        [r"the inputs of all was \[sum gather\], is now \[sum\]; stale: latency of all net on box", r"what sum sends"],
    ),
    "upstream of an edge": (
        in_file("workflow.yaml", "inputs: [prepare]", "inputs: [left]"),
        [r"the inputs of split was \[prepare\], is now \[left\]; stale: latency of split few, split many, sum net and"],
    ),
    "order of inputs that are matched by position": (
        in_file("workflow.yaml", "inputs: [left, right]", "inputs: [right, left]"),
        [r"the inputs of compare was \[left, right\], is now \[right, left\]; stale: latency of compare net"],
    ),
    "a model that is cut": (
        retrain(lambda path: difference(path, "b", "a"), "compare"),
        [r"compare net \(models/compare.onnx\) .* stale: latency of compare net .* cuts of compare net, accuracy"],
    ),
    "an entry by hand of a stated model": (
        by_hand,
        [r"sum net .* stale: latency of sum net and all net on box and t4"],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_staleness_is_found(kind: str, folder: Path) -> None:
    edit, expected = KINDS[kind]
    assert load_project(folder).stale == ()
    build_problem(load_project(folder))
    edit(folder)
    project = load_project(folder)
    texts = [str(entry) for entry in project.stale]
    assert len(texts) == len(expected), texts
    for text, pattern in zip(sorted(texts), sorted(expected), strict=True):
        assert re.search(pattern, text), text
    with pytest.raises(
        StaleProfilesError, match=r"run `jellybean profile .*or go on with these figures: --stale"
    ) as error:
        build_problem(project)
    assert len(error.value.problems) == len(expected)
    assert all(problem.file.endswith("profiles.yaml") and problem.line for problem in error.value.problems)
    accepted = build_problem(load_project(folder, accept_stale=True))
    assert list(accepted.stale_profiles) == texts


def test_an_output_that_was_not_sent_before_is_found(folder: Path) -> None:
    """The edge names another output of the model upstream, so other tensors flow."""
    replace(folder, "workflow.yaml", "inputs: [prepare]", "inputs: [{from: prepare, output: y}]")
    assert load_project(folder).stale == ()  # the first output, only named
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    (folder / "profiles.yaml").write_text(
        text.replace("split: [prepare]", "split: [prepare output z]"), encoding="utf-8"
    )
    (stale, sent) = load_project(folder).stale
    assert str(stale).startswith("what prepare sends was output z, is now each output; stale: messages of prepare")
    assert str(sent).startswith("the inputs of split was [prepare output z], is now [prepare]; stale: latency of split")


def test_stage_files_are_checked(folder: Path) -> None:
    scale(folder / "models/stages/compare.net.1.head.onnx", 7.0)
    with pytest.raises(DocumentError, match=r"cuts\.0\.head\.sha256: the file has .*run: jellybean profile"):
        load_project(folder)


def test_cuts_of_another_model_are_not_planned(folder: Path) -> None:
    assert len(build_problem(load_project(folder)).operator_by_name["compare"].forms) == 1
    retrain(lambda path: difference(path, "b", "a"), "compare")(folder)
    assert not build_problem(load_project(folder, accept_stale=True)).has_forms


def test_cuts_of_other_speed_are_found(folder: Path) -> None:
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    head, _, cuts = text.partition("cuts:")
    (folder / "profiles.yaml").write_text(
        head + "cuts:" + cuts.replace("{speed: 0.5, run: 1}", "{speed: 0.4, run: 1}", 1), encoding="utf-8"
    )
    (entry,) = load_project(folder).stale
    assert str(entry) == "speed of box was 0.4, is now 0.5; stale: cuts of compare net on box"
    assert load_project(folder, ["operators.compare.cuts=0"]).stale == ()


def test_types_that_no_run_measured_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def named() -> str:
        assert run(["validate", str(folder)]) == 0
        return " ".join(capsys.readouterr().err.split())

    assert "never measured" not in named()
    path = folder / "profiles.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(
        re.sub(r"box: \{model: \w+, speed: 0.5, run: 1\}", "box: {source: by hand}", text), encoding="utf-8"
    )
    assert "never measured, but by hand or imported: box. To measure a type: `jellybean profile" in named()


@pytest.mark.parametrize(
    ("name", "value"),
    [("cpu", "Another CPU"), ("cores", 96), ("system", "Linux armv8"), ("onnxruntime", "1.2.3"), ("threads", 8)],
)
def test_another_machine_is_a_note_and_no_error(name: str, value: object, folder: Path) -> None:
    assert machine_notes(load_project(folder)) == ()
    replace(folder, "profiles.yaml", f"    {name}: {getattr(this_machine(), name)}", f"    {name}: {value}")
    project = load_project(folder)
    assert project.stale == ()
    build_problem(project)
    (note,) = machine_notes(project)
    assert f"{name} {value}, here {getattr(this_machine(), name)}" in note


def test_times_of_a_device_are_not_held_against_this_machine(folder: Path) -> None:
    """A type without a speed is measured on its own device, whatever machine plans."""
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(box|t4): \{(model: \w+, )?speed: [0-9.]+, ", r"\1: {\2", text)
    (folder / "profiles.yaml").write_text(text.replace("cores: ", "cores: 9"), encoding="utf-8")
    infrastructure = (folder / "infrastructure.yaml").read_text(encoding="utf-8")
    (folder / "infrastructure.yaml").write_text(re.sub(r", speed: [0-9.]+", "", infrastructure), encoding="utf-8")
    project = load_project(folder)
    assert project.stale == ()
    (note,) = machine_notes(project)  # only of the hop, which is measured here
    assert "cores 9" in note


def test_one_type_on_unlike_machines_is_a_note(folder: Path) -> None:
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    first = text.index("  1:\n")
    run = text[first : text.index("hop:")]
    other = run.replace("  1:\n", "  2:\n").replace("cores: ", "cores: 3")
    text = text.replace(run, run + other)
    (folder / "profiles.yaml").write_text(
        text.replace("speed: 0.5, run: 1}", "speed: 0.5, run: 2}", 1), encoding="utf-8"
    )
    notes = machine_notes(load_project(folder))
    assert any(note == "box was measured on 2 unlike machines (runs 2 and 1)" for note in notes), notes


def test_all_changes_are_listed_at_once(folder: Path) -> None:
    for kind in ("speed of a type", "metric", "a model with its new hash", "held-out inputs"):
        KINDS[kind][0](folder)
    with pytest.raises(StaleProfilesError) as error:
        build_problem(load_project(folder))
    assert len(error.value.problems) == 4
    assert {entry["changed"] for entry in error.value.stale} == {
        "speed of box",
        "metric",
        "sum net (models/sum.onnx)",
        "held-out inputs of left",
    }


def test_held_out_data_that_is_damaged_is_an_error_with_its_path(folder: Path) -> None:
    """Its header is whole, so only reading the values finds it."""
    path = folder / "data/heldout.npz"
    rows = {name: np.full((4000, 4), value, np.float32) for name, value in (("left", 1), ("right", 2))}
    np.savez(path, **rows, labels=np.arange(4000))
    content = bytearray(path.read_bytes())
    content[content.index(rows["right"].tobytes()) + 60_000] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(
        DocumentError, match=r"sources\.right\.inputs: data/heldout.npz#right cannot be read: Bad CRC-32"
    ):
        load_project(folder)


def test_a_run_that_is_not_there_is_refused(folder: Path) -> None:
    replace(folder, "profiles.yaml", "hop: {run: 1}", "hop: {run: 4}")
    with pytest.raises(DocumentError, match="provenance names run 4, which `runs` does not have"):
        load_project(folder)


def test_profiles_without_provenance_are_never_stale(folder: Path) -> None:
    text = (folder / "profiles.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^( *)provenance:\n(?:\1 +.*\n)+", "", text)
    text = re.sub(r"(?m)^runs:\n(?: +.*\n)+", "machine: {cpu: some}\n", text)
    assert "run:" not in text
    (folder / "profiles.yaml").write_text(text, encoding="utf-8")
    for kind in ("speed of a type", "metric", "a model with its new hash", "held-out inputs", "a function's source"):
        KINDS[kind][0](folder)
    assert load_project(folder).stale == ()
