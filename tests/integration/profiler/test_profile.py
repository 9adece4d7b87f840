"""The profiler on the digits example: real measurements, a valid document, resumable, true accuracy."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from jellybean.documents import build_problem, load_project
from jellybean.errors import JellyBeanError
from jellybean.profiler import Profiled, accuracy, profile
from jellybean.profiler.cache import FOLDER, Cache
from jellybean.profiler.flow import Flow
from jellybean.profiler.project import workload_of

pytestmark = pytest.mark.slow

SECONDS = 0.02
FINISHED = FOLDER / "finished.jsonl"

Edit = Callable[[Path, str, str], None]


@pytest.fixture(scope="module")
def profiled(shared_folder: Path) -> Profiled:
    return profile(load_project(shared_folder, profiles=False), seconds_per_point=SECONDS)


def keys(folder: Path) -> list[str]:
    return [json.loads(line)["key"] for line in (folder / FINISHED).read_text(encoding="utf-8").splitlines()]


def test_profile_is_a_document_that_plans_read(profiled: Profiled, shared_folder: Path) -> None:
    project = load_project(shared_folder)
    problem = build_problem(project)
    assert project.profiles is not None
    assert set(project.profiles.operators) == {"find", "shape", "strokes", "read", "number"}
    shape = project.profiles.operators["shape"]
    assert {batch for by_type in shape["mlp"].latency.values() for batch in by_type} == {1, 4}
    assert {
        batch for by_type in project.profiles.operators["number"]["number"].latency.values() for batch in by_type
    } == {1}
    for operator in problem.operators:
        for variant in operator.variants:
            assert set(variant.service) == {"box", "cloud"}
            assert all(memory > 0 for memory in variant.memory_bytes.values())
            assert variant.model is not None
    assert project.profiles.hop_s is not None
    assert 0 < project.profiles.hop_s < 1
    assert project.profiles.runs[1].onnxruntime == ort.__version__


def test_figures_are_consistent(profiled: Profiled) -> None:
    for variants in profiled.document.operators.values():
        for variant in variants.values():
            for by_batch in variant.latency.values():
                for figures in by_batch.values():
                    quantiles = [seconds for _, seconds in figures.quantiles]
                    assert len(quantiles) == 3
                    assert quantiles == sorted(quantiles)
                    assert figures.mean_s is not None
                    assert 0 < figures.mean_s <= quantiles[-1] * 1.001


def test_the_noise_of_a_run_is_that_of_its_entries(profiled: Profiled) -> None:
    latencies = [v.latency for variants in profiled.document.operators.values() for v in variants.values()]
    noises = [b.noise for by_type in latencies for batches in by_type.values() for b in batches.values()]
    assert profiled.document.runs[1].noise is not None and all(noise is not None for noise in noises)
    stated = re.findall(r"([0-9.]+) %", profiled.document.runs[1].noise)
    assert [float(text) for text in stated] == pytest.approx(
        [100 * statistics.median(noises), 100 * max(noises)], rel=0.05
    )


def test_messages_are_measured_per_child(profiled: Profiled) -> None:
    operators = profiled.document.operators
    assert operators["find"]["find"].bytes_to("shape") == 256  # one crop of bytes
    assert operators["shape"]["mlp"].bytes_to("read") == 40  # ten floats
    assert operators["number"]["number"].bytes_to("anything") == 8


def reference_accuracy(folder: Path, shape: str, strokes: str) -> float:
    """Straight through onnxruntime, one strip after another."""
    data = np.load(folder / "data/heldout.npz")
    sessions = {
        name: ort.InferenceSession(folder / f"models/{name}.onnx", providers=["CPUExecutionProvider"])
        for name in ("find", f"shape-{shape}", f"strokes-{strokes}", "read", "number")
    }
    right = 0
    for strip, label in zip(data["strips"], data["labels"], strict=True):
        crops = sessions["find"].run(None, {"strip": strip[None]})[0]
        fused = np.zeros((0, 10), np.float32)
        if len(crops):
            one = np.concatenate([sessions[f"shape-{shape}"].run(None, {"find": crop[None]})[0] for crop in crops])
            two = np.concatenate([sessions[f"strokes-{strokes}"].run(None, {"find": crop[None]})[0] for crop in crops])
            fused = sessions["read"].run(None, {"shape": one, "strokes": two})[0]
        right += int(sessions["number"].run(None, {"read": fused})[0][0]) == label
    return 100.0 * right / len(data["labels"])


def test_agreements_are_with_the_most_accurate_selection(profiled: Profiled, shared_folder: Path) -> None:
    found = profiled.document.accuracy
    assert found is not None
    assert found.reference is not None
    assert found.requests == len(np.load(shared_folder / "data/heldout.npz")["labels"])
    rows = {(row.selection["shape"], row.selection["strokes"]): row for row in found.end_to_end or ()}
    best = rows[found.reference["shape"], found.reference["strokes"]]
    assert (best.agreement, best.accuracy) == (100.0, max(row.accuracy for row in rows.values()))
    for row in rows.values():  # an answer that is right on one side only differs
        assert row.agreement is not None
        assert abs(row.accuracy - best.accuracy) <= 100.0 - row.agreement + 1e-6


@pytest.mark.parametrize(
    ("shape", "strokes"), [("mlp", "linear"), ("cnn-large-int8", "linear"), ("cnn-small", "cnn-int8")]
)
def test_accuracy_is_what_plain_onnxruntime_gives(
    profiled: Profiled, shared_folder: Path, shape: str, strokes: str
) -> None:
    found = profiled.document.accuracy
    assert found is not None
    assert found.end_to_end is not None
    assert len(found.end_to_end) == 12
    (measured,) = [row.accuracy for row in found.end_to_end if row.selection == {"shape": shape, "strokes": strokes}]
    assert measured == pytest.approx(reference_accuracy(shared_folder, shape, strokes))


def test_a_second_profile_measures_nothing_again(profiled: Profiled, shared_folder: Path) -> None:
    before = keys(shared_folder)
    labels: list[str] = []
    (shared_folder / "profiles.yaml").unlink()  # all measurements are still in the cache
    again = profile(
        load_project(shared_folder, profiles=False),
        seconds_per_point=SECONDS,
        progress=lambda done, total, label: labels.append(label),
    )
    assert set(keys(shared_folder)) == set(before)  # a noisy hop is measured again, under its key
    assert again.document.operators == profiled.document.operators
    assert again.document.accuracy == profiled.document.accuracy
    assert labels


@pytest.mark.nightly
def test_an_interrupted_profile_goes_on_where_it_stopped(project_folder: Path) -> None:
    workflow = project_folder / "workflow.yaml"
    kept = [
        line
        for line in workflow.read_text(encoding="utf-8").splitlines(True)
        if not line.strip().startswith(("cnn-large", "cnn:"))
    ]
    workflow.write_text("".join(kept), encoding="utf-8")
    project = load_project(project_folder, profiles=False)
    calls = 0

    def interrupt(done: float, total: float, label: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(project, seconds_per_point=SECONDS, batch_sizes=(1,), progress=interrupt)
    first = keys(project_folder)
    assert first
    assert not (project_folder / "profiles.yaml").exists()
    profile(project, seconds_per_point=SECONDS, batch_sizes=(1,))
    both = keys(project_folder)
    assert both[: len(first)] == first
    assert len(set(both)) == len(both)
    assert (project_folder / "profiles.yaml").exists()


def test_progress_grows_to_its_total(profiled: Profiled, shared_folder: Path) -> None:
    seen: list[tuple[float, float]] = []
    (shared_folder / "profiles.yaml").unlink()
    profile(
        load_project(shared_folder, profiles=False),
        seconds_per_point=SECONDS,
        progress=lambda done, total, label: seen.append((done, total)),
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert all(done <= total + 1e-9 for done, total in seen)
    assert seen[-1][0] == pytest.approx(seen[-1][1], rel=0.05)


def test_a_ratio_unlike_the_data_is_said(shared_folder: Path, profiled: Profiled) -> None:
    project = load_project(
        shared_folder, ["operators.shape.inputs.0.ratio=3", "operators.strokes.inputs.0.ratio=3"], profiles=False
    )
    (shared_folder / "profiles.yaml").unlink()
    again = profile(project, seconds_per_point=SECONDS)
    assert not any("ratio" in note for note in profiled.notes)
    assert any("shape: workflow.yaml says ratio 3 from find, profiles.yaml has" in note for note in again.notes)


def test_too_many_selections_are_measured_per_operator(shared_folder: Path) -> None:
    workload = workload_of(load_project(shared_folder, profiles=False))
    found = accuracy.independent(workload, Flow(workload), Cache.open(shared_folder), lambda done: None)
    assert set(found) == {"find", "shape", "strokes", "read", "number"}
    best = found["number"]["number"]
    measured = accuracy.measure_accuracy(
        workload, Flow(workload), accuracy.all_selections(workload), Cache.open(shared_folder), lambda done: None
    )
    assert 0 < best <= max(measured.percent)
    assert found["shape"]["mlp"] < 100.0
    assert max(found["shape"].values()) == 100.0
    for selection, percent in zip(measured.selections, measured.percent, strict=True):
        if selection["strokes"] == max(found["strokes"], key=lambda name: found["strokes"][name]):
            product = best * found["shape"][selection["shape"]] / 100
            assert product == pytest.approx(percent, abs=5)


def test_an_altered_model_is_named(project_folder: Path) -> None:
    project = load_project(project_folder, profiles=False)
    path = project_folder / "models/strokes-cnn.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(JellyBeanError, match=r"strokes, variant cnn: .*sha256"):
        profile(project, seconds_per_point=SECONDS)


def test_variants_without_models_are_named(project_folder: Path) -> None:
    vqa = project_folder / "workflow.yaml"
    text = vqa.read_text(encoding="utf-8")
    start, end = text.index("      read: {model"), text.index("  number:")
    vqa.write_text(text[:start] + "      read: {}\n" + text[end:], encoding="utf-8")
    with pytest.raises(JellyBeanError, match=r"no model file to measure for read\.read"):
        profile(load_project(project_folder, profiles=False), seconds_per_point=SECONDS)


def test_pools_of_one_type_must_have_one_speed(project_folder: Path, edit: Edit) -> None:
    edit(project_folder / "infrastructure.yaml", "speed: 1}", "speed: 1, type: box}")
    with pytest.raises(JellyBeanError, match="worker type box has pools of different speed"):
        profile(load_project(project_folder, profiles=False), seconds_per_point=SECONDS)
