"""The example documents: sound, true to their source, and described by the schemas."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from jellybean.documents import Project, build_problem, json_schemas, load_project
from jellybean_solver import EndToEnd, Problem

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
PUBLISHED = EXAMPLES / "published" / "jellybean"
OPERATORS = {"ExtractImageFeature": "image_features", "SpeechRecognition": "speech_to_text", "VQA": "answer"}
VARIANTS = {"wav2vec2-base-960h": "wav2vec2-base", "wav2vec2-large-960h-lv60-self": "wav2vec2-large"}


@pytest.fixture(scope="module")
def vqa() -> Project:
    return load_project(EXAMPLES / "vqa")


@pytest.fixture(scope="module")
def problem(vqa: Project) -> Problem:
    return build_problem(vqa)


def rows(name: str) -> Iterator[list[str]]:
    """Rows of a published file."""
    with (PUBLISHED / name).open(newline="", encoding="utf-8") as stream:
        yield from csv.reader(stream)


def worker(name: str) -> str:
    return name.removeprefix("workflow-compute-")


@pytest.mark.parametrize(
    ("file", "level"),
    [("execution_profile.csv", 0.75), ("execution_profile_p50.csv", 0.50), ("execution_profile_p90.csv", 0.90)],
)
def test_latencies_are_the_published_ones(problem: Problem, file: str, level: float) -> None:
    count = 0
    for operator, machine, variant, milliseconds in rows(file):
        profile = problem.operator_by_name[OPERATORS[operator]].variant(VARIANTS.get(variant, variant))
        time = profile.service[worker(machine)][1]
        assert dict(time.quantiles)[level] == pytest.approx(float(milliseconds) / 1000, rel=1e-6)
        if level == 0.75:
            assert time.load_s == dict(time.quantiles)[level]
        count += 1
    assert count == sum(len(v.service) for operator in problem.operators for v in operator.variants)


def test_messages_are_the_published_ones(problem: Problem) -> None:
    for origin, target, variant, _, kib in rows("message_sizes.csv"):
        size = pytest.approx(float(kib) * 1024, rel=1e-6)
        if origin.startswith("Read"):
            assert problem.source_by_name[origin.removeprefix("Read").lower()].message_bytes == size
            continue
        sender = problem.operator_by_name[OPERATORS[origin]]
        senders = sender.variants if variant == "default" else [sender.variant(variant)]
        assert [item.message_bytes[OPERATORS[target]] for item in senders] == [size] * len(senders)


def test_workers_tiers_and_prices_are_the_published_ones(problem: Problem) -> None:
    prices = {worker(name): float(price) for name, price in rows("workers_specs.csv")}
    assert {pool.name: pool.price_usd_per_h for pool in problem.pools} == prices
    partition = json.loads((PUBLISHED / "workers_partition.json").read_text(encoding="utf-8"))
    tiers = {worker(name): tier for tier, names in zip(problem.tiers, partition, strict=True) for name in names}
    assert {pool.name: pool.tier for pool in problem.pools} == tiers
    assert all(pool.count == 1 for pool in problem.pools)
    upward = [row for row in rows("workers_workers_link.csv") if tiers[worker(row[0])] == "edge"]
    assert {float(price) * 0.1 for *_, price in upward} == {link.price_usd_per_gib for link in problem.links}


def test_accuracies_and_targets_are_the_published_ones(problem: Problem) -> None:
    next(rows("input_injection_rates.csv"))
    published = json.loads((PUBLISHED / "accuracy_profiles.json").read_text(encoding="utf-8"))["end_to_end"]["accuracy"]
    table = {tuple(VARIANTS.get(name, name) for name in row["variants"]): row["accuracy"] for row in published}
    assert problem.accuracy == EndToEnd(("image_features", "speech_to_text"), table)
    assert (
        problem.slo.accuracy
        == json.loads((PUBLISHED / "accuracy_requirement.json").read_text(encoding="utf-8"))["threshold"]
    )
    assert [source.rate_per_s for source in problem.sources] == [
        float(rate) for _, rate in rows("input_injection_rates.csv")
    ]
    assert problem.utilisation == 1.0


def test_sharing_is_switched_by_one_override() -> None:
    problem = build_problem(load_project(EXAMPLES / "vqa", ["limits.sharing=exclusive"]))
    assert {pool.sharing.value for pool in problem.pools} == {"exclusive"}


def documents() -> list[Path]:
    return sorted([*EXAMPLES.glob("*/*.yaml"), *EXAMPLES.glob("*/workflows/*/*.yaml")])


def plain(path: Path) -> Any:
    """As an editor sees it: JSON values, keys as text."""
    return json.loads(json.dumps(YAML(typ="safe", pure=True).load(path)))


@pytest.mark.parametrize("path", documents(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_schemas_accept_the_examples(path: Path) -> None:
    document = plain(path)
    schema = json_schemas()[document["kind"]]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("workflow.yaml", {"slo": {"acuracy": 3}}),
        ("workflow.yaml", {"slo": {"latency_p99": "800"}}),
        ("workflow.yaml", {"slo": {"latency_p99": 800}}),
        ("workflow.yaml", {"kind": "workflow"}),
        ("workflow.yaml", {"sources": {}}),
        ("workflow.yaml", {"name": None}),
        ("infrastructure.yaml", {"tiers": []}),
        ("infrastructure.yaml", {"workers": {"a b": {"tier": "edge", "price": "1 USD/h"}}}),
        ("infrastructure.yaml", {"links": [{"from": "edge", "to": "cloud", "price": "1 USD/h"}]}),
        ("profiles.yaml", {"hop": "3 KiB"}),
        ("profiles.yaml", {"operators": {"a": {"b": {"message": "1 KiB"}}}}),
    ],
)
def test_schemas_refuse_what_the_loader_refuses(file: str, change: dict[str, Any]) -> None:
    document = {**plain(EXAMPLES / "vqa" / file), **change}
    validator = jsonschema.Draft202012Validator(json_schemas()[file.removesuffix(".yaml").capitalize()])
    assert not validator.is_valid(document)


def test_schemas_help_editors() -> None:
    text = json.dumps(json_schemas())
    for shown in ("794 KiB", "40/s", "0.096 USD/h", "0.10 USD/GiB", "100 Mbit/s", "20 ms"):
        assert shown in text
    assert '"null"' not in text
