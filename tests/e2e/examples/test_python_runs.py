"""A workflow of a model between Python steps, the agent's own and a team's: from documents to answers."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from jellybean.cli import run
from jellybean.serving import Client, running_state
from jellybean_protos.inference.v2 import inference_pb2 as pb
from jellybean_protos.inference.v2 import inference_pb2_grpc
from tests.support.known_hop import keep_hop

WORKFLOW = """\
kind: Workflow
name: steps
sources:
  picture: {{tier: edge, rate: 1/s, message: 12 B, inputs: data/heldout.npz#pictures}}
operators:
  prepare:
    inputs: [picture]
    variants: {{plain: {{python: "jellybean_agent.steps:normalise", with: {{mean: 0.5, std: 0.25, shape: 12}}}}}}
  look:
    inputs: [prepare]
    variants:
      linear: {{model: models/linear.onnx, sha256: {sha256}}}
      thirds: {{python: "team_steps:thirds", with: {{times: 2}}}}
  label:
    inputs: [look]
    variants: {{best: {{python: "jellybean_agent.steps:argmax", with: {{classes: 3}}}}}}
labels: data/heldout.npz#labels
metric: exact_match
slo: {{accuracy: 90}}
"""
INFRASTRUCTURE = """\
kind: Infrastructure
tiers: [edge]
workers: {box: {tier: edge, count: 1, price: 0.1 USD/h, speed: 0.01}}
"""
TEAM = """\
from pathlib import Path
from jellybean_agent.steps import step

Path(__file__).with_suffix(".ran").touch()


@step(inputs={"values": ("float32", (-1, 12))}, outputs={"scores": ("float32", (-1, 3))})
def thirds(inputs, *, times: float):
    values = inputs["values"]
    if values[0, 0] > 1.9:
        raise ValueError("too bright to read")
    return {"scores": values.reshape(-1, 3, 4).sum(axis=2) * times}
"""
FLAG = "--allow-python=team_steps:thirds"
REFUSED = "python team_steps:thirds is not allowed here, and was not imported: if the machine's owner agrees, give "
REFUSED += "--allow-python team_steps:thirds"


def linear(path: Path) -> str:
    """Scores that are almost blind to where the picture is bright: few answers of it are right."""
    weights = np.zeros((12, 3), np.float32)
    weights[0, 1] = 1.0
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["values", "weights"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("values", TensorProto.FLOAT, ["n", 12])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(weights, "weights")],
    )
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Noise, one third of each brighter than the others; which one."""
    random = np.random.default_rng(1)
    found = random.integers(0, 60, (24, 3, 4), dtype=np.uint8)
    labels = random.integers(0, 3, 24)
    found[np.arange(24), labels] += 120
    return found.reshape(24, 12), labels


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its team's module lies beside workflow.yaml."""
    directory = tmp_path_factory.mktemp("projects") / "steps"
    for folder in ("models", "data"):
        (directory / folder).mkdir(parents=True)
    (directory / "team_steps.py").write_text(TEAM, encoding="utf-8")
    rows, labels = pictures()
    np.savez(directory / "data/heldout.npz", pictures=rows, labels=labels)
    (directory / "workflow.yaml").write_text(
        WORKFLOW.format(sha256=linear(directory / "models/linear.onnx")), encoding="utf-8"
    )
    (directory / "infrastructure.yaml").write_text(INFRASTRUCTURE, encoding="utf-8")
    return directory


def ran(project: Path) -> bool:
    return (project / "team_steps.ran").exists()


@pytest.fixture(scope="module")
def planned(project: Path) -> Path:
    """A copy that is profiled and planned."""
    copy = shutil.copytree(project, project.with_name("planned"))
    keep_hop(copy)  # between agents, which others measure
    assert run(["profile", str(copy), "--seconds", "0.05", FLAG]) == 0
    assert ran(copy)
    (copy / "team_steps.ran").unlink()
    assert run(["plan", str(copy)]) == 0
    assert not ran(copy)  # what it takes and gives was read, not run
    return copy


@pytest.fixture(scope="module")
def served(planned: Path) -> Iterator[Path]:
    """A copy of the plan, which is served."""
    copy = shutil.copytree(planned, planned.with_name("served"))
    assert run(["up", str(copy), "--detach", FLAG]) == 0
    yield copy
    assert run(["down", str(copy)]) == 0


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, status: int) -> str:
    assert run([*arguments]) == status
    return " ".join(capsys.readouterr().err.split())


def test_refused_before_anything_of_the_module_has_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"operator look, variant thirds: {REFUSED}" in refused(capsys, "profile", str(project), status=2)
    assert not ran(project)


def test_planned_by_what_was_measured(planned: Path) -> None:
    plan = json.loads((planned / "plan.json").read_text(encoding="utf-8"))
    (look,) = (one for one in plan["operators"] if one["name"] == "look")
    assert look["variant"] == "thirds"
    source = (planned / "team_steps.py").read_bytes()
    assert look["model"]["python"] == {
        "function": "team_steps:thirds",
        "arguments": '{"times":2}',
        "module_sha256": hashlib.sha256(source).hexdigest(),
    }
    assert plan["accuracy"] == 100


def test_up_refuses_too(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"look/thirds: {REFUSED}" in refused(capsys, "up", str(planned), "--detach", status=2)
    assert not ran(planned)


def test_an_agent_goes_by_its_own_list_and_by_the_planned_source(planned: Path) -> None:
    peers = planned.parent / "peers.json"
    peers.write_text("{}", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "jellybean_agent", "--in-process", f"--plan={planned / 'plan.json'}"]
    command += [
        "--worker=box-1",
        f"--root={planned}",
        f"--python-path={planned}",
        f"--listen=unix:{planned.parent}/a.sock",
        f"--peers={peers}",
    ]

    def told(*flags: str) -> str:
        done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert not ran(planned)
        return done.stderr

    assert f"look/thirds: {REFUSED}" in told()
    assert "names no function of a module" in told("--allow-python=team_steps")
    module = planned / "team_steps.py"
    source = module.read_text(encoding="utf-8")
    module.write_text(source + "# another version\n", encoding="utf-8")
    assert "another version is installed here; install the planned one, or plan again" in told(FLAG)
    module.write_text(source, encoding="utf-8")


def test_answers_are_those_of_the_steps(served: Path) -> None:
    rows, labels = pictures()
    with Client.of(served) as client:
        assert [int(client.infer({"picture": row[None]})["label"][0]) for row in rows] == labels.tolist()
        with pytest.raises(Exception, match=r"python team_steps:thirds: ValueError: too bright to read \(INTERNAL\)"):
            client.infer({"picture": np.full((1, 12), 255, np.uint8)})
        with pytest.raises(Exception, match="expected uint8"):
            client.infer({"picture": np.zeros((1, 12), np.float32)})
        assert int(client.infer({"picture": rows[:1]})["label"][0]) == labels[0]


def test_a_step_by_itself_over_the_inference_protocol(served: Path) -> None:
    (agent,) = (one for one in running_state(served).processes if one.name.startswith("box"))
    values = np.float32([[0] * 4 + [1] * 4 + [0.5] * 4])
    with grpc.insecure_channel(agent.address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        found = stub.ModelMetadata(pb.ModelMetadataRequest(name="look"))
        assert (found.platform, list(found.versions)) == ("python", ["thirds"])
        assert [(one.name, one.datatype, list(one.shape)) for one in found.inputs] == [("values", "FP32", [1, 12])]
        assert [(one.name, one.datatype, list(one.shape)) for one in found.outputs] == [("scores", "FP32", [-1, 3])]
        tensor = pb.ModelInferRequest.InferInputTensor(name="values", datatype="FP32", shape=[1, 12])
        request = pb.ModelInferRequest(model_name="look", inputs=[tensor], raw_input_contents=[values.tobytes()])
        answer = stub.ModelInfer(request, timeout=30)
        assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [0, 8, 4]


def test_another_plan_needs_to_be_allowed_too(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, back = (
        ("apply", str(served), "--stale", "--set", f"operators.look.variants.thirds.with={{times: {times}}}")
        for times in (3, 2)
    )
    assert REFUSED in refused(capsys, *change, status=2)
    assert run([*change, FLAG]) == 0
    assert "serving the new plan" in capsys.readouterr().out
    assert run([*back, FLAG]) == 0
