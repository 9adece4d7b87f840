"""An emulated device whose runs the event loop begins: busy as long as its profile says, never shorter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from jellybean_agent.executor import file_sha256


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
    least_s = (0.1, 0.1, 0.1, 0.2)
    assert all(busy_s >= least for busy_s, least in zip(found["busy_s"], least_s, strict=True))
    assert all(late_s >= 0 for late_s in found["late_s"])
    assert found["output"] == [[-1, -1]]
    assert found["goes_on_s"] == pytest.approx(0.0, abs=1e-9) or found["goes_on_s"] > 0  # later only where it was late
    assert max(found["one_after_another_s"]) <= 0  # none was over early
    assert found["late"] is True
    assert "killed by SIGKILL" in found["crash"] or found["crash"].startswith("[RunResult")  # it had answered before
    assert found["may_begin"] is ("killed" not in found["crash"])
