"""Training manifests: valid by Kubernetes' schemas, one pod per rank, resolvable addresses."""

from __future__ import annotations

import hashlib

import pytest
import yaml

from jellybean.cli import run
from jellybean_k8s import TrainingJob, training_objects, yaml_documents
from tests.k8s_check import schema_complaints

ONE = TrainingJob("digits", "registry.example/jellybean-train:1", "project", 1, 2, "0.1.0")
TRAINING = """\
kind: Training
model: nets.py:net
data: nets.py:data
epochs: 1
batch: 8
optimizer: {name: sgd, lr: 0.1}
devices: 8
"""
MANY = TrainingJob(
    *("Digits of all kinds " * 4, "registry.example/jellybean-train:1", "project", 3, 4, "0.1.0"),
    folder="runs/digits",
    gpu="nvidia",
    overrides=("devices=12", "schedule=zb-h1"),
)


@pytest.mark.parametrize("job", [ONE, MANY], ids=["one", "many"])
def test_sound(job):
    service, run = training_objects(job)
    assert schema_complaints([service, run]) == []
    pod = run["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert len(run["metadata"]["name"]) <= 52
    assert run["spec"]["completions"] == run["spec"]["parallelism"] == job.pods
    arguments = pod["spec"]["containers"][0]["args"]
    assert f"--nnodes={job.pods}" in arguments
    assert f"--nproc-per-node={job.processes}" in arguments
    assert yaml_documents([service, run]) == yaml_documents(training_objects(job))


def test_pods_meet_at_the_first():
    service, run = training_objects(MANY)
    name = run["metadata"]["name"]
    arguments = run["spec"]["template"]["spec"]["containers"][0]["args"]
    port = service["spec"]["ports"][0]["port"]
    assert f"--rdzv-endpoint={name}-0.{service['metadata']['name']}:{port}" in arguments
    assert arguments[-5:] == ["/project", "--set", "devices=12", "--set", "schedule=zb-h1"]
    limits = run["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "4"
    assert "--standalone" in training_objects(ONE)[1]["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize(
    ("options", "memory"),
    [
        ((), "8Gi"),  # 2 GiB and nothing said of the device, each of 4 processes
        (("--set", "memory=3 GiB"), "20Gi"),  # a CPU's memory is the host's
        (("--set", "memory=80 GiB", "--gpu", "nvidia"), "32Gi"),  # a GPU's is its own
        (("--memory", "5 GiB", "--gpu", "nvidia"), "20Gi"),
    ],
)
def test_memory_is_the_hosts_for_all_processes(tmp_path, capsys, options, memory):
    """Request and limit are equal."""
    (tmp_path / "training.yaml").write_text(TRAINING, encoding="utf-8")
    asked = ["train", str(tmp_path), "--render", "--image", "i", "--claim", "c", "--pods", "2", *options]
    assert run(asked) == 0
    job = list(yaml.safe_load_all(capsys.readouterr().out))[1]
    resources = job["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert (resources["requests"]["memory"], resources["limits"]["memory"]) == (memory, memory)


def test_memory_without_a_unit_is_refused(tmp_path, capsys):
    (tmp_path / "training.yaml").write_text(TRAINING, encoding="utf-8")
    assert run(["train", str(tmp_path), "--render", "--image", "i", "--claim", "c", "--memory", "5"]) == 2
    assert "--memory" in capsys.readouterr().err


def test_the_document_that_it_is_of_is_told(tmp_path, capsys):
    (tmp_path / "training.yaml").write_text(TRAINING, encoding="utf-8")
    assert run(["train", str(tmp_path), "--render", "--image", "i", "--claim", "c"]) == 0
    job = list(yaml.safe_load_all(capsys.readouterr().out))[1]
    told = {"jellybean.dev/training-sha256": hashlib.sha256(TRAINING.encode()).hexdigest()}
    assert job["metadata"]["annotations"] == job["spec"]["template"]["metadata"]["annotations"] == told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--render", "--claim", "c"), "needs --image (for the pods) and --claim"),
        (("--render", "--image", "i", "--claim", "My Claim"), "--claim My Claim"),
        (("--render", "--image", "i", "--claim", "c", "--gpu", "nvidea"), "write nvidia, amd, intel"),
        (("--render", "--image", "i", "--claim", "c", "--folder", "../x"), "in the claim"),
        (("--render", "--image", "i", "--claim", "c", "--pods", "3"), "--pods 3 does not divide the 8 processes"),
        (("--image", "i"), "--image needs --render"),
    ],
)
def test_options_that_make_no_job(tmp_path, capsys, options, told):
    (tmp_path / "training.yaml").write_text(TRAINING, encoding="utf-8")
    assert run(["train", str(tmp_path), *options]) == 2
    said = " ".join(part for part in capsys.readouterr().err.replace("│", " ").split())
    assert told in said
