"""Models that never end, crash or take all memory while a command tries them: refused, and the command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper

from jellybean.documents import load_project, write_draft
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.flow import Flow
from jellybean.profiler.project import workload_of
from jellybean_agent import CPU, Executor, ModelError, hash_model, load_problem, load_problem_of, trial_process
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_wire import Conversation
from jellybean_agent.execution.tried_models import SpawnedProcesses
from tests.support.command_line import jellybean, jellybean_process
from tests.support.exported_forms import FLOAT, INT64, save_graph
from tests.support.tiny_models import scale, spin
from tests.support.waiting import wait_until

LIMIT_S = 3.0  # of a run
COMMAND = """\
import sys
import numpy as np
from pathlib import Path
from jellybean_agent import CPU, trial_process
session = trial_process().open(Path(sys.argv[1]), sys.argv[2], CPU)
print(trial_process().pid, flush=True)
session.run({"x": np.ones((1, 3), np.float32)})
"""
X, Y = {"x": (FLOAT, ["N", 3])}, {"y": (FLOAT, ["N", 3])}


def endless(path: Path) -> None:
    """A loop whose condition stays true."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["before"], ["after"])],
        "body",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in
         (("i", INT64, []), ("go", TensorProto.BOOL, []), ("before", FLOAT, ["N", 3]))],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("after", FLOAT, None)],
    )  # fmt: skip
    save_graph(path, [helper.make_node("Loop", ["", "true", "x"], ["y"], body=body)], X, Y, {"true": np.array(True)})


def endless_below_a_function(path: Path) -> None:
    """Functions that call each other twice, 40 deep: onnxruntime writes each call out while it loads the model."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "F0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets)]
    for depth in range(1, 40):
        calls = [helper.make_node(f"F{depth - 1}", [given], [made], domain="own") for given, made in ("ac", "cb")]
        functions.append(helper.make_function("own", f"F{depth}", ["a"], ["b"], calls, opsets))
    ports = [helper.make_tensor_value_info(name, FLOAT, ["N", 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("F39", ["x"], ["y"], domain="own")], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)
    path.write_bytes(model.SerializeToString())


def all_memory(path: Path) -> None:
    """A tensor of 4 TiB."""
    nodes = [
        helper.make_node("Expand", ["x", "size"], ["much"]),
        helper.make_node("ReduceMax", ["much"], ["most"], keepdims=0),
        helper.make_node("Add", ["x", "most"], ["y"]),
    ]
    save_graph(path, nodes, {"x": (FLOAT, ["N", 1])}, {"y": (FLOAT, ["N", 1])}, {"size": np.array([1, 2**40])})


@pytest.fixture
def process() -> Iterator[ModelProcess]:
    found = ModelProcess(SpawnedProcesses(), load_limit_s=60.0, run_limit_s=LIMIT_S)
    yield found
    found.close()


def tried(process: ModelProcess, path: Path) -> Executor:
    return Executor(path, hash_model(path)[0], {"x": "x"}, open_session=process.open)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "limit_s"), [(endless, 60.0), (endless_below_a_function, 8.0)])
def test_a_model_that_never_ends_is_refused_and_the_next_one_is_tried(
    tmp_path: Path, make: Callable[[Path], None], limit_s: float
) -> None:
    process = ModelProcess(SpawnedProcesses(), load_limit_s=limit_s, run_limit_s=LIMIT_S)
    make(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"crashed: its process took longer than \d s and was ended") as raised:
        tried(process, tmp_path / "m.onnx")
    problem = load_problem_of(raised.value)
    assert str(problem).endswith("was ended; no worker could serve it: export it again, or ask its maker")
    scale(tmp_path / "next.onnx", 2.0)
    executor = tried(process, tmp_path / "next.onnx")
    assert executor.run([np.ones((1, 4), np.float32)]).outputs["y"].tolist() == [[2.0] * 4]
    process.close()


def test_a_crash_is_told_with_its_signal(tmp_path: Path, process: ModelProcess) -> None:
    endless(tmp_path / "m.onnx")
    sha256 = hash_model(tmp_path / "m.onnx")[0]
    session = process.open(tmp_path / "m.onnx", sha256, CPU)
    crash = threading.Timer(0.1, os.kill, (process.pid, signal.SIGSEGV))
    crash.start()
    with pytest.raises(Exception, match="the model crashed: its process was killed by SIGSEGV"):
        session.run({"x": np.ones((1, 3), np.float32)})
    crash.join()
    assert load_problem(tmp_path / "m.onnx", sha256) is None  # which only loads it


def test_ctrl_c_does_not_end_the_process_amid_its_start(tmp_path: Path) -> None:
    """A terminal sends it to the command's processes, too; it was told as a crash of the model."""
    scale(tmp_path / "m.onnx", 2.0)

    class Interrupted(SpawnedProcesses):
        def new_process(self) -> tuple[Conversation, int]:
            conversation, pid = super().new_process()
            os.kill(pid, signal.SIGINT)
            return conversation, pid

    process = ModelProcess(Interrupted(), load_limit_s=60.0)
    executor = tried(process, tmp_path / "m.onnx")
    os.kill(process.pid, signal.SIGINT)
    assert executor.run([np.ones((1, 4), np.float32)]).outputs["y"].tolist() == [[2.0] * 4]
    os.kill(process.pid, signal.SIGTERM)  # which ends it as usual
    child = psutil.Process(process.pid)
    wait_until(lambda: child.status() == psutil.STATUS_ZOMBIE)
    assert process.close() == -signal.SIGTERM


def test_a_run_that_is_interrupted_leaves_no_answer_behind(tmp_path: Path, process: ModelProcess) -> None:
    """Which the next run would take for its own."""
    endless(tmp_path / "m.onnx")
    scale(tmp_path / "next.onnx", 2.0)
    session, after = (
        process.open(path, hash_model(path)[0], CPU) for path in (tmp_path / "m.onnx", tmp_path / "next.onnx")
    )

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupted)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            session.run({"x": np.ones((1, 3), np.float32)})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not process.is_alive
    assert after.run({"x": np.ones((1, 4), np.float32)})[0].tolist() == [[2.0] * 4]


def test_a_command_that_is_killed_takes_its_process_with_it(tmp_path: Path) -> None:
    """Also from a run that never ends, which reads no connection."""
    endless(tmp_path / "m.onnx")
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "m.onnx"), hash_model(tmp_path / "m.onnx")[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        child = psutil.Process(int(running.stdout.readline()))
        wait_until(lambda: child.cpu_times().user > 0.5)  # it is in its run
        running.kill()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_init_refuses_a_model_that_takes_all_memory_with_its_reason(tmp_path: Path) -> None:
    all_memory(tmp_path / "m.onnx")
    jellybean("init", str(tmp_path / "p"), "--from", str(tmp_path / "m.onnx"))
    told = " ".join(jellybean("validate", str(tmp_path / "p"), status=2).stderr.split())
    assert "Init has no random inputs that are taken" in told
    assert "while running Expand node" in told


def test_profile_names_a_model_that_crashes_on_its_data(tmp_path: Path) -> None:
    """One that runs as often as its input says: zeros are answered, so that it loads and is tried."""
    spin(tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.full((8, 4), 1e18, np.float32))
    write_draft(tmp_path / "p", [tmp_path / "m.onnx"], tmp_path / "data.npz")
    flow = Flow(workload_of(load_project(tmp_path / "p", profiles=False)))
    crash = threading.Timer(0.3, lambda: os.kill(trial_process().pid, signal.SIGSEGV))
    trial_process().ensure_started()
    crash.start()
    with pytest.raises(ProfileError, match=r"operator m, variant m: .*crashed: its process was killed by SIGSEGV"):
        flow.answer(0, {"m": "m"})
    crash.join()


@pytest.mark.nightly
def test_init_ends_by_itself(tmp_path: Path) -> None:
    endless(tmp_path / "m.onnx")
    done = jellybean_process("init", str(tmp_path / "p"), "--from", str(tmp_path / "m.onnx"), status=2, timeout=300)
    assert "took longer than 60 s and was ended; no worker could serve it" in " ".join(done.stderr.split())
    assert not (tmp_path / "p").exists()


def test_a_model_that_was_loaded_is_forgotten(tmp_path: Path, process: ModelProcess) -> None:
    scale(tmp_path / "m.onnx", 2.0)
    sha256 = hash_model(tmp_path / "m.onnx")[0]
    session = process.open(tmp_path / "m.onnx", sha256, CPU)
    feed = {"x": np.ones((1, 4), np.float32)}
    assert session.run(feed)[0].tolist() == [[2.0] * 4]
    session.close()
    assert not session.is_loaded
    assert session.run(feed)[0].tolist() == [[2.0] * 4]  # loaded again
