"""An emulated device whose runs the event loop begins: busy as long as its profile says, even if a timer is late."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from jellybean_agent import file_sha256


@pytest.mark.slow
def test_runs_on_an_emulated_device_in_the_event_loop(tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    command = [sys.executable, str(Path(__file__).with_name("held_runs.py")), str(path), file_sha256(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["took_s"] >= 0.5
    runs = list(zip(found["busy_s"], found["late_s"], (0.1, 0.1, 0.1, 0.2), strict=True))
    assert all(busy_s - late_s == pytest.approx(least_s, abs=1e-9) for busy_s, late_s, least_s in runs)
    assert found["output"] == [[-1, -1]]
    assert found["goes_on_s"] == pytest.approx(found["goes_on_late_s"], abs=1e-9)  # as if it had begun at once
    free_s, late_s, left_s = found["one_after_another_s"]
    gaps_s = [after - before for before, after in pairwise(free_s)]
    assert gaps_s == pytest.approx([0.1 + late for late in late_s[1:]], abs=1e-6)  # nothing was between two runs
    assert max(left_s) <= 0  # none was told early
    quick_late_s, quick_busy_s = found["late"]
    assert quick_late_s == pytest.approx(quick_busy_s - 1e-9, abs=1e-9)
    assert quick_late_s > 0
    assert "killed by SIGKILL" in found["crash"]
    assert found["can_run_async"] is False  # until its host is there again
