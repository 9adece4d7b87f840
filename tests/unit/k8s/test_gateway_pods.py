"""Pods of the gateway: one or several, their ledger, and the volume of kept requests."""

from __future__ import annotations

import dataclasses

import pytest

from jellybean_k8s import DeployError, LedgerDatabase, deployed_plan, render
from jellybean_solver import Deliver, Plan
from tests.k8s_check import complaints, schema_complaints
from tests.k8s_golden import assert_golden
from tests.k8s_plans import SETTINGS
from tests.unit.k8s.rendered_objects import find


def test_several_gateways_are_the_golden_ones(plan: Plan) -> None:
    deployed = deployed_plan(plan, dataclasses.replace(SETTINGS, gateway_replicas=3))
    objects = render(deployed)
    assert_golden("digits-gateways.yaml", objects, deployed)
    assert complaints(objects) == schema_complaints(objects) == []
    deployment = find(objects, "Deployment")["spec"]
    assert deployment["replicas"] == 3
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (gateway,) = deployment["template"]["spec"]["containers"]
    assert {"--reply-address=$(REPLY_HOST):7001", "--gateways=3"} <= set(gateway["args"])
    assert gateway["env"] == [{"name": "REPLY_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    budget = find(objects, "PodDisruptionBudget", "-gateway")["spec"]
    assert budget["maxUnavailable"] == 1
    pod_labels = deployment["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= pod_labels.items()
    policy = find(objects, "NetworkPolicy", "-agents")["spec"]
    (to_own, *_) = (rule for rule in policy["egress"] if "to" in rule)  # agents reach the pods by their labels
    assert to_own["to"][0]["podSelector"]["matchLabels"].items() <= pod_labels.items()


def test_several_gateways_find_each_other_in_the_ledger(plan: Plan) -> None:
    database = LedgerDatabase("postgresql+psycopg://jellybean@db.example/ledger", "ledger")
    deployed = deployed_plan(plan, dataclasses.replace(SETTINGS, gateway_ledger=database, gateway_replicas=2))
    objects = render(deployed)
    assert complaints(objects) == schema_complaints(objects) == []
    (gateway,) = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert f"--ledger-deployment=$(POD_NAMESPACE)/{deployed.gateway}" in gateway["args"]
    paths = {item["name"]: item["valueFrom"].get("fieldRef", {}).get("fieldPath") for item in gateway["env"]}
    assert paths == {
        "REPLY_HOST": "status.podIP",
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "PGPASSWORD": None,
    }


def test_a_single_gateway_is_deployed_as_before(plan: Plan) -> None:
    objects = render(deployed_plan(plan, SETTINGS))
    deployment = find(objects, "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert not [text for text in deployment["template"]["spec"]["containers"][0]["args"] if "reply" in text]
    budgets = [item["metadata"]["name"] for item in objects if item["kind"] == "PodDisruptionBudget"]
    assert not [name for name in budgets if name.endswith("-gateway")]


def test_what_several_gateways_cannot_serve(plan: Plan) -> None:
    three = dataclasses.replace(SETTINGS, gateway_replicas=3, gateway_spool="kept")
    sources = tuple(dataclasses.replace(source, deliver=Deliver.EVENTUALLY) for source in plan.sources)
    with pytest.raises(DeployError, match=r"keeps requests on disk .* that 3 gateways cannot share: write replicas: 1"):
        deployed_plan(dataclasses.replace(plan, sources=sources), three)
    first, *others = plan.operators
    stateful = (dataclasses.replace(first, state=(("state", "state_next"),)), *others)
    with pytest.raises(DeployError, match=rf"{first.name} keeps a state by stream.*one of 3: write replicas: 1"):
        deployed_plan(dataclasses.replace(plan, operators=stateful), three)
    for count in (0, 17):
        with pytest.raises(DeployError, match=rf"gateway\.replicas: {count} is not from 1 to 16"):
            deployed_plan(plan, dataclasses.replace(SETTINGS, gateway_replicas=count))


def test_requests_that_are_kept_need_a_volume(plan: Plan) -> None:
    sources = tuple(dataclasses.replace(source, deliver=Deliver.EVENTUALLY) for source in plan.sources)
    keeping = dataclasses.replace(plan, sources=sources)
    with pytest.raises(DeployError, match="name a PersistentVolumeClaim"):
        render(deployed_plan(keeping, SETTINGS))
    objects = render(deployed_plan(keeping, dataclasses.replace(SETTINGS, gateway_spool="kept")))
    assert complaints(objects) == schema_complaints(objects) == []
    gateway = find(objects, "Deployment")["spec"]["template"]["spec"]
    assert "--spool=/var/lib/jellybean/spool.db" in gateway["containers"][0]["args"]
    assert gateway["volumes"][-1]["persistentVolumeClaim"]["claimName"] == "kept"


def test_a_ledger_is_a_database_whose_password_is_a_secret(plan: Plan) -> None:
    database = LedgerDatabase("postgresql+psycopg://jellybean@db.example/ledger", "ledger")
    metrics, labelled = {"": "top1", "shop": "exact_match"}, {"shop": "last"}
    own = dataclasses.replace(SETTINGS, gateway_ledger=database, metrics=metrics, labelled=labelled)
    objects = render(deployed_plan(plan, own))
    assert complaints(objects) == schema_complaints(objects) == []
    (gateway,) = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert f"--ledger={database.url}" in gateway["args"]
    assert "--ledger-run=$(POD_NAME)" in gateway["args"]
    assert {"--metric=top1", "--metric=shop=exact_match", "--labelled=shop=last"} <= set(gateway["args"])
    policies = [item for item in objects if item["kind"] == "NetworkPolicy"]
    reached = [port["port"] for item in policies for rule in item["spec"]["egress"] for port in rule["ports"]]
    assert reached.count(5432) == 1  # of the gateway alone
    assert LedgerDatabase("postgresql+psycopg://jellybean@db.example:5433/ledger").port == 5433
    assert {item["name"]: item["valueFrom"] for item in gateway["env"]} == {
        "POD_NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "PGPASSWORD": {"secretKeyRef": {"name": "ledger", "key": "password"}},
    }
    with pytest.raises(DeployError, match="a Secret"):
        LedgerDatabase("postgresql+psycopg://jellybean:pass@db.example/ledger")
    with pytest.raises(DeployError, match=r"not sqlite:///ledger\.db"):
        LedgerDatabase("sqlite:///ledger.db")
