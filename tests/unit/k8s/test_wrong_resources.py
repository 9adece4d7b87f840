"""Wrong values are refused by the resource's definition, and in words, with their path, by whoever reads documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jellybean.errors import DocumentError
from jellybean.operator import resource_definition
from jellybean.operator.resource import lay_out, operator_spec, stated_profiles
from tests.k8s_resource import resource

READ_ALONE = object()  # the definition has no words for it
ZERO = "above 0"
BOX = "infrastructure.workers.box"
BATCH = "profiles.operators.read.small.latency.box.1"
WRONG: list[tuple[Any, ...]] = [  # path, value, words of the reader
    ("slo.accuracy", 101, "at most 100, not 101"),
    ("slo.accuracy", -1, "at least 0, not -1"),
    ("slo.mean_accuracy", 100.5, "at most 100, not 100.5"),
    ("slo.mean_accuracy", -0.5, "at least 0"),
    ("slo.budget", "-1 USD/h", "must not be negative"),
    ("slo.latency_p99", "0 s", ZERO),
    ("slo.latency_p99", "-1 s", "must not be negative"),
    ("slo.audit", 1.5, "above 1, which is 100 %"),
    ("slo.audit", 0, "not above 0 %"),
    ("slo.survive", ["2 workers"], "cannot be planned for"),
    ("sources.strip.rate", "0/s", "must be above 0, not 0"),
    ("sources.strip.rate", "-1/s", "must not be negative"),
    ("sources.strip.message", "-1 KiB", "must not be negative"),
    ("sources.strip.message", "10", "unit"),
    ("sources.strip.streams", 0, "at least 1"),
    ("sources.strip.arrivals", "odd", "is not one of"),
    ("sources.strip.tier", "bad tier", "is not a valid name"),
    ("operators.read.variants.small.sha256", "abc", "is not a SHA-256 (3 characters)"),
    ("operators.read.variants.small.sha256", "g" * 64, "is not a SHA-256"),
    ("operators.read.variants.small.sha256", "a" * 65, "is not a SHA-256 (65 characters)"),
    ("operators.read.variants.small.files", {"a": "abc"}, "files"),
    ("operators.read.variants.small.cuts", 51, "is not a number of cuts"),
    ("operators.read.batch", 0, "at least 1"),
    ("operators.read.batch_delay", "-1 ms", "must not be negative"),
    ("operators.read.inputs", [], "is empty"),
    ("operators.read.inputs", [{"from": "strip", "ratio": {"*": 0}}], ZERO),
    ("operators.read.variants", {}, "is empty"),
    (f"{BOX}.count", -1, "at least 0"),
    (f"{BOX}.count", 100_001, "at most 100000"),
    (f"{BOX}.price", "-1 USD/h", "must not be negative"),
    (f"{BOX}.speed", 0, ZERO),
    (f"{BOX}.speed", 1.5, "at most 1"),
    (f"{BOX}.memory", "0 GiB", ZERO),
    (f"{BOX}.device_memory", "0 GiB", ZERO),
    (f"{BOX}.billing", "0 s", ZERO),
    (f"{BOX}.share", {"mps": 1.5}, "at most 1"),
    (f"{BOX}.share", {"slots": 1}, "at least 2"),
    ("infrastructure.links.0.price", "-1 USD/GiB", "must not be negative"),
    ("infrastructure.links.0.bandwidth", "0 Mbit/s", ZERO),
    ("infrastructure.links.0.latency", "-1 ms", "must not be negative"),
    ("infrastructure.limits", {"utilisation": 1.5}, "not above 0 and at most 1"),
    ("infrastructure.limits", {"utilisation": 0}, "not above 0 and at most 1"),
    ("infrastructure.limits", {"batch": 0}, "at least 1"),
    ("infrastructure.limits", {"budget": "-1 USD/h"}, "must not be negative"),
    ("infrastructure.migration", {"at_least": 2}, "at most 1"),
    ("infrastructure.migration", {"start": "-1 USD"}, "must not be negative"),
    ("infrastructure.sites", {"edge": 0}, "at least 1"),
    ("infrastructure.tiers", [], "is empty"),
    ("profiles.accuracy.independent.read.small", 101, "at most 100, not 101"),
    ("profiles.accuracy.independent.read.small", -1, "at least 0, not -1"),
    (
        "profiles.accuracy",
        {"end_to_end": [{"selection": {"read": v}, "accuracy": a} for v, a in (("small", 101), ("large", 90))]},
        "at most 100",
    ),
    (
        "profiles.accuracy",
        {"per_operator": {"read": {"small": [{"output": 101}], "large": [{"output": 90}]}}},
        "at most 100",
    ),
    (f"{BATCH}.mean", "-1 ms", "must not be negative"),
    (f"{BATCH}.mean", "0 ms", "must be above 0", READ_ALONE),
    (f"{BATCH}.noise", -0.5, "must not be negative"),
    ("profiles.operators.read.small.latency.box", {"0": {"mean": "1 ms"}}, "is not a batch size", READ_ALONE),
    ("profiles.hop", {"time": "-1 ms"}, "must not be negative"),
    ("kubernetes.pools.box.cpu", 0, ZERO),
    ("kubernetes.pools.box.cpu", 2000, "at most 1024"),
    ("kubernetes.pools.box.gpus", 0, "at least 1"),
    ("kubernetes.pools.box.gpus", 65, "at most 64"),
    ("kubernetes.pools.box.memory", "0 MiB", ZERO),
    ("kubernetes.pools.box.gpu", "voodoo", "is not a known GPU vendor"),
    ("kubernetes.pools.box.nodes", {"a": "b c"}, "is not a value of a Kubernetes label"),
    ("kubernetes.pods", {"cpu_limit": -1}, ZERO),
    ("kubernetes.pods", {"priority": "High"}, "is not a name of a Kubernetes object"),
    ("kubernetes.pods", {"labels": {"jellybean.dev/plan": "x"}}, "is set by JellyBean", READ_ALONE),
    ("kubernetes.pods", {"tolerations": [{"key": "a", "effect": "Never"}]}, "is not one of"),
    ("kubernetes.pods", {"patch": {"template": {}}}, "is not part of a pod template", READ_ALONE),
    ("kubernetes.gateway", {"service": {"type": "Ingress"}}, "is not one of"),
    ("kubernetes.gateway", {"memory": "0 MiB"}, ZERO),
    ("kubernetes.gateway", {"spool": "My_Claim"}, "is not a name of a Kubernetes object"),
    ("kubernetes.gateway", {"ledger": {"url": "sqlite:///x"}}, "is a database"),
    ("kubernetes.gateway", {"ledger": {"url": "postgresql+psycopg://a@b:99999/x"}}, "from 1 to 65535", READ_ALONE),
    ("kubernetes.models.url", "ftp://x/y", "is not a URL"),
    ("kubernetes.models.cache", {"claim": "a", "host_path": "/b"}, "write one of claim and host_path", READ_ALONE),
    ("kubernetes.models.cache", {"host_path": "b"}, "is not the absolute path of a folder"),
    ("kubernetes.models.cache", {"host_path": "/a/../b"}, "is not the absolute path of a folder", READ_ALONE),
    ("kubernetes.models.cache", {"claim": "a", "size": "0 GiB"}, ZERO),
    ("kubernetes.traces", {"endpoint": "collector:4318"}, "is not http(s)://HOST:PORT"),
    ("kubernetes.traces", {"endpoint": "https://collector"}, "has no port from 1 to 65535"),
    ("kubernetes.traces", {"endpoint": "https://collector:4318", "ratio": 2}, "at most 1"),
    ("kubernetes.traces", {"endpoint": "http://collector:4318", "secret": "s"}, "only https:// keeps", READ_ALONE),
    ("kubernetes.models.url", "https://h:99999/x", "from 1 to 65535", READ_ALONE),
    ("kubernetes.models", {"claim": "Bad_Name"}, "is not a name of a Kubernetes object"),
    ("kubernetes.images.gateway", "", "does not name an image"),
    ("kubernetes.images.gateway", "a b", "does not name an image"),
    ("kubernetes.images.agent", {}, "is empty"),
    ("kubernetes.allow_python", ["nonsense"], "names no function of a module"),
    ("kubernetes.start", "0 s", ZERO),
    ("kubernetes.drain", "-1 s", "must not be negative"),
    ("kubernetes.tier_label", "a b", "is not a Kubernetes label"),
    ("kubernetes.clusters", {"a": {"tiers": ["edge"]}}, "an operator deploys to its own cluster only", READ_ALONE),
    ("kubernetes.relay", {"address": "a.example:1"}, "an operator deploys to its own cluster only", READ_ALONE),
    ("kubernetes.name", "Bad Name", "is not a valid name"),
    ("replan.horizon", "0 s", "greater than 0"),
    ("replan.time_limit", "0 s", "greater than 0"),
    ("timeout", "0 s", "greater than 0"),
    ("certificates", "maybe", "issued"),
]


def changed(path: str, value: Any) -> dict[str, Any]:
    """The resource with this value."""
    found = resource()
    at: Any = found["spec"]
    *keys, last = path.split(".")
    for key in keys:
        at = at[int(key)] if isinstance(at, list) else at.setdefault(key, {})
    at[last] = value
    return found


def names(test: tuple[Any, ...]) -> str:
    return f"{test[0]}={test[1]!r}"[:60]


@pytest.fixture(scope="module")
def definition() -> jsonschema.protocols.Validator:
    (version,) = resource_definition()["spec"]["versions"]
    return jsonschema.Draft4Validator(version["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("case", [case for case in WRONG if READ_ALONE not in case], ids=names)
def test_the_definition_refuses_it_at_its_path(
    definition: jsonschema.protocols.Validator, case: tuple[Any, ...]
) -> None:
    path, value, *_ = case
    errors = [".".join(map(str, error.absolute_path)) for error in definition.iter_errors(changed(path, value))]
    assert errors
    assert all(error.startswith(f"spec.{path}") for error in errors)


@pytest.mark.parametrize("case", WRONG, ids=names)
def test_whoever_reads_it_refuses_it_in_words_with_its_path(tmp_path: Path, case: tuple[Any, ...]) -> None:
    """As a project's documents, which `validate` and `plan` read likewise."""
    path, value, words, *_ = case
    made = changed(path, value)
    with pytest.raises(DocumentError) as caught:
        operator_spec(made)
        lay_out(made, made["spec"]["infrastructure"], stated_profiles(made["spec"]), tmp_path)
    shown = [str(problem).replace("spec: ", "spec.") for problem in caught.value.problems]
    parent = path.rpartition(".")[0] if path.startswith(BATCH) else path
    assert any(line.startswith(f"spec.{parent}") and words in line for line in shown), shown


def test_the_right_resource_is_taken(definition: jsonschema.protocols.Validator, tmp_path: Path) -> None:
    made = changed("slo.accuracy", 80)
    assert list(definition.iter_errors(made)) == []
    lay_out(made, made["spec"]["infrastructure"], stated_profiles(made["spec"]), tmp_path)


@pytest.mark.parametrize("text", ["0.5/s", ".5/s", "10/s", "5./s", "1e-3/s", "007/min", "0.05 /h"])
def test_numbers_above_zero_are_taken(definition: jsonschema.protocols.Validator, text: str) -> None:
    assert list(definition.iter_errors(changed("sources.strip.rate", text))) == []


@pytest.mark.parametrize("text", ["0/s", "0.0/s", ".0/s", "00./s", "0e5/s", "0.00 /h"])
def test_zero_is_refused_however_it_is_written(definition: jsonschema.protocols.Validator, text: str) -> None:
    assert list(definition.iter_errors(changed("sources.strip.rate", text)))
