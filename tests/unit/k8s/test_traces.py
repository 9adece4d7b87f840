"""Traces of pods: variables that OpenTelemetry's SDK reads, the way to the collector, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jellybean_agent.telemetry.tracing import is_traced
from jellybean_k8s import (
    DeployError,
    DeploymentSettings,
    LedgerDatabase,
    PodSettings,
    TraceSettings,
    deployed_plan,
    render,
)
from jellybean_k8s.cluster.checks.references import setting_paths
from jellybean_k8s.cluster.readiness import WORKLOADS
from tests import report_plans
from tests.k8s_check import complaints, schema_complaints
from tests.k8s_golden import assert_golden
from tests.k8s_plans import SETTINGS, with_models

PLAN = with_models(report_plans.digits())
TRACED = dataclasses.replace(SETTINGS, traces=TraceSettings("https://collector:4318", 0.01, "collector"))


def environments(settings: DeploymentSettings) -> list[dict[str, Any]]:
    """Variable -> its value, or where that is from, of the container of each set."""
    objects = render(deployed_plan(PLAN, settings))
    containers = [o["spec"]["template"]["spec"]["containers"][0] for o in objects if o["kind"] in WORKLOADS]
    return [{item["name"]: item.get("value", item.get("valueFrom")) for item in c.get("env", ())} for c in containers]


def test_pods_that_are_traced_are_the_golden_ones() -> None:
    deployed = deployed_plan(PLAN, TRACED)
    objects = render(deployed)
    assert_golden("digits-traced.yaml", objects, deployed)
    assert complaints(objects) == schema_complaints(objects) == []


def test_every_process_is_told_where_and_how_to_send_and_says_where_it_is() -> None:
    found = environments(TRACED)
    assert len(found) == 3
    for environment in found:
        texts = {name: value for name, value in environment.items() if isinstance(value, str)}
        assert is_traced(texts)
        assert texts["OTEL_EXPORTER_OTLP_PROTOCOL"] == "http/protobuf"
        assert (texts["OTEL_TRACES_SAMPLER"], texts["OTEL_TRACES_SAMPLER_ARG"]) == ("parentbased_traceidratio", "0.01")
        assert environment["OTEL_EXPORTER_OTLP_HEADERS"] == {"secretKeyRef": {"name": "collector", "key": "headers"}}
        names = list(environment)
        for part in texts["OTEL_RESOURCE_ATTRIBUTES"].split(","):
            attribute, _, variable = part.partition("=")
            assert attribute.startswith("k8s.")
            name = variable.removeprefix("$(").removesuffix(")")
            assert environment[name]["fieldRef"]["fieldPath"]
            assert names.index(name) < names.index("OTEL_RESOURCE_ATTRIBUTES")  # else it is not replaced
    assert not any("OTEL_TRACES_SAMPLER" in environment for environment in environments(SETTINGS))


def test_a_gateway_with_a_ledger_has_its_name_once_and_a_person_may_set_what_is_opentelemetrys() -> None:
    settings = dataclasses.replace(
        TRACED,
        gateway_ledger=LedgerDatabase("postgresql+psycopg://u@db/ledger"),
        pods=PodSettings(env={"OTEL_TRACES_SAMPLER": "always_on", "OTEL_SERVICE_NAME": "x"}),
    )
    objects = render(deployed_plan(PLAN, settings))
    for item in objects:
        if item["kind"] in WORKLOADS:
            names = [one["name"] for one in item["spec"]["template"]["spec"]["containers"][0]["env"]]
            assert len(names) == len(set(names))
    assert all(environment["OTEL_TRACES_SAMPLER"] == "always_on" for environment in environments(settings))


@pytest.mark.parametrize(("endpoint", "port"), [("http://otel.monitoring:4317", 4317), ("https://c:4318/x", 4318)])
def test_the_way_to_the_collector_is_open(endpoint: str, port: int) -> None:
    settings = dataclasses.replace(SETTINGS, traces=TraceSettings(endpoint))
    policies = [o for o in render(deployed_plan(PLAN, settings)) if o["kind"] == "NetworkPolicy"]
    assert len(policies) == 2
    assert all({"ports": [{"protocol": "TCP", "port": port}]} in item["spec"]["egress"] for item in policies)
    protocol = "http/protobuf" if port == 4318 else "grpc"
    assert {one["OTEL_EXPORTER_OTLP_PROTOCOL"] for one in environments(settings)} == {protocol}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (("collector:4318",), "is not http.s.://HOST:PORT: for example https://collector:4318"),
        (("https://u:p@collector:4318",), "is not http.s.://HOST:PORT"),
        (("https://collector",), "has no port from 1 to 65535"),
        (("https://collector:0",), "has no port from 1 to 65535"),
        (("https://collector:4318", 1.5), "traces.ratio is 1.5, not a share from 0 to 1"),
        (("http://collector:4318", 0.5, "s"), "only https:// keeps it secret: write https://collector:4318"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_words(values: tuple[Any, ...], words: str) -> None:
    with pytest.raises(DeployError, match=words):
        TraceSettings(*values)


def test_a_missing_secret_is_named_by_its_key() -> None:
    assert setting_paths(TRACED)["Secret", "collector"] == "traces.secret"
