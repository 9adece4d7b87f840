"""A training run as objects: sound by Kubernetes' schemas, every rank there once, addresses that exist."""

from __future__ import annotations

import pytest

from jellybean_k8s.training import TrainingJob, training_objects
from jellybean_k8s.yaml_text import documents
from tests.k8s_check import schema_complaints

ONE = TrainingJob("digits", "registry.example/jellybean-train:1", "project", 1, 2, "0.1.0")
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
    assert documents([service, run]) == documents(training_objects(job))


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
