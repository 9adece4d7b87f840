"""training.yaml with a plan: its devices, its files, and what contradicts it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jellybean.documents import PLANNER_OBJECTIVES, TrainingDocument, few_microbatches, load_training, read_stage_plan
from jellybean.errors import DocumentError
from jellybean_solver.pipeline import OBJECTIVES

LINES = """\
kind: Training
model: nets.py:net
data: nets.py:data
epochs: 1
batch: 8
optimizer: {name: sgd, lr: 0.1}
"""
TWO_ONE = {"stages": [{"layers": ["a"], "devices": [2, 0]}, {"layers": ["b", "c"], "devices": [1]}]}


def _load(folder: Path, *lines: str, plan: Any = TWO_ONE) -> TrainingDocument:
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    (folder / "training.yaml").write_text(LINES + "\n".join(lines) + "\n", encoding="utf-8")
    return load_training(folder)


@pytest.mark.parametrize("key", ["plan", "stages"])
def test_a_plan_gives_the_number_of_devices(tmp_path, key):
    document = _load(tmp_path, f"{key}: plan.json")
    assert (document.plan, document.stages, document.devices, document.ranks) == ("plan.json", None, 3, 3)
    assert _load(tmp_path, f"{key}: plan.json", "devices: 3", "replicas: 2").ranks == 6


def test_another_number_of_devices_is_refused(tmp_path):
    with pytest.raises(DocumentError, match=r"plan.json is for 3 devices \(2-1\), and the document has 4"):
        _load(tmp_path, "plan: plan.json", "devices: 4")


def test_a_plan_that_splits_layers_cannot_be_trained(tmp_path):
    """A split of the samples only is a replica."""
    split = [{"layer": "a", "axes": ["sample"]}, {"layer": "b", "axes": ["out"]}]
    stage = {"layers": ["a", "b", "c"], "devices": [0, 1]}
    message = "plan: plan.json is planned only: it splits b over devices; to train, use --objective alpa-inter"
    with pytest.raises(DocumentError, match=message):
        _load(tmp_path, "plan: plan.json", plan={"stages": [{**stage, "split": split}]})
    assert _load(tmp_path, "plan: plan.json", plan={"stages": [{**stage, "split": split[:1]}]}).devices == 2


def test_a_plan_and_an_objective_are_refused(tmp_path):
    assert _load(tmp_path, "objective: dapple").objective == "dapple"
    with pytest.raises(DocumentError, match="`objective` plans other ones"):
        _load(tmp_path, "plan: plan.json", "objective: dapple")
    with pytest.raises(DocumentError, match="objective"):
        _load(tmp_path, "objective: fastest")


def test_the_planners_names_of_objectives_lead_to_those_of_training(tmp_path):
    for name, meant in {"slowest-stage": "pipedream", "alpa-inter": "alpa"}.items():
        with pytest.raises(DocumentError, match=rf"did you mean '{meant}'\? `pipeline plan` calls it {name}"):
            _load(tmp_path, f"objective: {name}")
    assert {_load(tmp_path, f"objective: {name}").objective for name in PLANNER_OBJECTIVES} == {*PLANNER_OBJECTIVES}
    assert set(PLANNER_OBJECTIVES.values()) <= set(OBJECTIVES)


def test_too_few_microbatches_name_those_of_the_plan():
    assert few_microbatches((2, 1), 1) == (
        "stage 0 has 2 replicas, but an update has 1 micro-batch: --set microbatches=2, or more"
    )
    assert few_microbatches((1, 3), 2, planned=8) == (
        "stage 1 has 3 replicas, but an update has 2 micro-batches: --set microbatches=8, for which it was planned"
    )
    assert few_microbatches((1, 3), 3, planned=8) == ""


def test_a_hierarchy_has_its_inner_stages(tmp_path):
    inner = [{"layers": ["a"], "devices": [0, 2]}, {"layers": ["b"], "devices": [1, 3]}]
    whole = {"stages": [{"layers": ["a", "b"], "replicas": 2, "stages": inner}]}
    (tmp_path / "plan.json").write_text(json.dumps(whole), encoding="utf-8")
    plan = read_stage_plan(tmp_path / "plan.json")
    assert [(stage.layers, stage.devices) for stage in plan.placement] == [(("a",), (0, 2)), (("b",), (1, 3))]
    assert (plan.counts, plan.devices) == ("2-2", 4)


BROKEN = {
    "there is no such file": None,
    "not JSON": "{",
    "stages: Field required": {},
    "it has no devices": {"stages": [{"layers": ["a"]}]},
    "which are not 0 to N - 1": {"stages": [{"layers": ["a"], "devices": [1]}]},
    "which are not 0 to N - 1, once": {
        "stages": [{"layers": ["a"], "devices": [0]}, {"layers": ["b"], "devices": [0]}]
    },
    "layer a stands in it twice": {"stages": [{"layers": ["a"], "devices": [0]}, {"layers": ["a"], "devices": [1]}]},
    "stages.0.layers": {"stages": [{"layers": "a", "devices": [0]}]},
}


PLACES: dict[str, Callable[[Path], None]] = {
    "is a pipe or a device, not a file": os.mkfifo,
    "not a file": lambda path: path.symlink_to("/dev/zero"),
    "is a folder": Path.mkdir,
}


@pytest.mark.parametrize("message", PLACES)
def test_what_stands_in_the_place_of_a_plan_is_not_waited_for_and_not_read_without_end(tmp_path, message):
    PLACES[message](tmp_path / "plan.json")
    with pytest.raises(DocumentError, match=message):
        read_stage_plan(tmp_path / "plan.json")


@pytest.mark.parametrize("message", BROKEN)
def test_a_file_that_is_no_plan(tmp_path, message):
    content = BROKEN[message]
    if content is not None:
        (tmp_path / "plan.json").write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
        )
    with pytest.raises(DocumentError) as caught:
        read_stage_plan(tmp_path / "plan.json")
    assert message in str(caught.value)
    assert "plan.json" in str(caught.value)
