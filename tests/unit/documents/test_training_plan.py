"""training.yaml with a plan: its devices, its files, and what contradicts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jellybean.documents.training import TrainingDocument, load_training
from jellybean.documents.training_plan import read_stage_plan
from jellybean.errors import DocumentError

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
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "training.yaml").write_text(LINES + "\n".join(lines) + "\n")
    return load_training(folder)


@pytest.mark.parametrize("key", ["plan", "stages"])
def test_a_plan_gives_the_number_of_devices(tmp_path, key):
    document = _load(tmp_path, f"{key}: plan.json")
    assert (document.plan, document.stages, document.devices, document.ranks) == ("plan.json", None, 3, 3)
    assert _load(tmp_path, f"{key}: plan.json", "devices: 3", "replicas: 2").ranks == 6


def test_another_number_of_devices_is_refused(tmp_path):
    with pytest.raises(DocumentError, match=r"plan.json is for 3 devices \(2-1\), and the document has 4"):
        _load(tmp_path, "plan: plan.json", "devices: 4")


def test_a_plan_and_an_objective_are_refused(tmp_path):
    assert _load(tmp_path, "objective: dapple").objective == "dapple"
    with pytest.raises(DocumentError, match="`objective` plans other ones"):
        _load(tmp_path, "plan: plan.json", "objective: dapple")
    with pytest.raises(DocumentError, match="objective"):
        _load(tmp_path, "objective: fastest")


def test_a_hierarchy_has_its_inner_stages(tmp_path):
    inner = [{"layers": ["a"], "devices": [0, 2]}, {"layers": ["b"], "devices": [1, 3]}]
    whole = {"stages": [{"layers": ["a", "b"], "replicas": 2, "stages": inner}]}
    (tmp_path / "plan.json").write_text(json.dumps(whole))
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


@pytest.mark.parametrize("message", BROKEN)
def test_a_file_that_is_no_plan(tmp_path, message):
    content = BROKEN[message]
    if content is not None:
        (tmp_path / "plan.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DocumentError) as caught:
        read_stage_plan(tmp_path / "plan.json")
    assert message in str(caught.value)
    assert "plan.json" in str(caught.value)
