"""Weights from a file: every rank has those of its stages only."""

from __future__ import annotations

import sys

import pytest

from tests.support.skips import Absent

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from safetensors.torch import save_file

from jellybean.training import TrainingError, read_inputs
from tests.integration.training.models.weights_case import FILE, TrainFromFile, document, write_weights
from tests.integration.training.ranks import run_ranks
from tests.support.training_inputs import load_training_inputs


@pytest.mark.skipif(sys.platform != "linux", reason=Absent.LINUX)
def test_each_rank_reads_its_stages(tmp_path):
    state = write_weights(tmp_path, seed=7)
    state["middle.weight"] = state["last.weight"]

    (first, _), (second, losses) = run_ranks(2, [TrainFromFile(str(tmp_path))])[0]

    tied = {"middle.weight", "last.weight"}  # each stage that has it names it in its own way
    assert (first.keys() | second.keys()) - tied == state.keys() - {"from.another.model", *tied, *_of("unused")}
    assert first.keys() & second.keys() <= tied
    for name, value in (*first.items(), *second.items()):
        assert torch.equal(value, state[name]), name
    inputs = load_training_inputs(document(FILE), tmp_path)
    assert torch.equal(inputs.module.norm.running_mean, state["norm.running_mean"])
    assert len(losses) == 4


def test_a_skeleton_takes_no_memory(tmp_path):
    write_weights(tmp_path, seed=7)
    module = read_inputs(document(FILE), tmp_path).module
    assert {value.untyped_storage().nbytes() for value in module.parameters()} == {8}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: state.pop("head.bias"), "lacks head.bias of the model; it has"),
        (
            lambda state: state.update({"head.bias": torch.zeros(5)}),
            r"head.bias has the shape \[5\] .* and \[3\] in",
        ),
        (lambda state: state.clear(), "lacks first.weight, first.bias, norm.weight, .* and .* more of the model"),
    ],
)
def test_other_weights_are_refused(tmp_path, change, told):
    state = write_weights(tmp_path, seed=7)
    change(state)
    save_file(state, tmp_path / FILE)
    with pytest.raises(TrainingError, match=told):
        read_inputs(document(FILE), tmp_path)


def test_files_that_are_none(tmp_path):
    (tmp_path / FILE).write_bytes(b"no weights")
    with pytest.raises(TrainingError, match="cannot be read"):
        read_inputs(document(FILE), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrainingError, match=r"has no \*\.safetensors files"):
        read_inputs(document("empty"), tmp_path)


def _of(layer: str) -> set[str]:
    return {f"{layer}.weight", f"{layer}.bias"}
