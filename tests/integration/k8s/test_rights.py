"""The deployer's Role against what deployments really ask of a server: enough, and nothing beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from jellybean.operator.reconcile import Reconciler
from jellybean.operator.resource import resource_definition
from jellybean_k8s import DeployError, PoolSettings, Settings, render
from jellybean_k8s.certificates import certificate_secrets
from jellybean_k8s.deploy import Options, deploy, dry_run, rollback, undeploy
from jellybean_k8s.rights import deployer_role, operator_rules
from jellybean_k8s.served import Deployed
from jellybean_k8s.status import read_status
from jellybean_solver.plan import Plan
from tests.k8s_check import schema_complaints
from tests.k8s_plans import wide
from tests.k8s_resource import resource
from tests.k8s_target import OTHER, PLAN, QUICK, SETTINGS, Target, define

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
Right = tuple[str, str, str]


def asked(target: Target) -> Iterator[Right]:
    """Group, resource, verb of each request in the namespace."""
    for method, path, params in target.wire.log:
        head, separator, rest = path.partition(f"/namespaces/{target.cluster.namespace}/")
        if not separator:
            continue
        group = head.split("/")[2] if head.startswith("/apis/") else ""
        resource, *name = rest.split("/")
        if len(name) == 2:
            resource = f"{resource}/{name[1]}"
        verb = VERBS.get(method) or ("watch" if params.get("watch") == "true" else "get" if name else "list")
        yield group, resource, verb


def rights(rules: Sequence[Any]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_operators_rules_allow_what_a_resource_takes(target: Target) -> None:
    define(target, resource_definition())
    target.create(resource())
    cluster = target.cluster
    reconciler = Reconciler(cluster, lambda: cluster.list("Node"))

    def look(**spec: Any) -> None:
        there = cluster.get("Workflow", "digits") or {}
        cluster.replace({**there, "kind": "Workflow", "spec": {**there["spec"], **spec}})
        target.wire.log.clear()  # what the test asks for
        reconciler.look(cluster.get("Workflow", "digits") or {})
        found.update(asked(target))

    found: set[Right] = set()
    look()
    look(slo={"accuracy": 90})
    there = cluster.get("Workflow", "digits") or {}
    target.wire.log.clear()
    reconciler.remove(there)
    found |= set(asked(target))
    found -= {("", "pods/status", "patch"), ("jellybean.dev", "workflows", "get")}
    assert ("jellybean.dev", "workflows/status", "patch") in found
    assert ("", "events", "create") in found
    assert found - rights(operator_rules()) == set()


def test_the_role_allows_what_deploying_takes_and_nothing_else(target: Target) -> None:
    monitored = target.server is not None  # whose kinds a real server may not know
    if target.server is not None:
        target.server.api.monitoring = True
    scaled = dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(autoscale=True)})
    many = wide(PLAN, "cloud", 4)

    def bring(plan: Plan, settings: Settings, options: Options = QUICK) -> None:
        deployed = Deployed(plan, settings)
        objects = (
            *certificate_secrets(deployed, target.certificates),
            *render(plan, settings, service_monitor=monitored),
        )
        dry_run(target.cluster, deployed, objects)
        deploy(target.cluster, deployed, objects, options)

    bring(many, scaled)
    bring(OTHER, SETTINGS)
    bring(OTHER, dataclasses.replace(SETTINGS, agent_image="agent:2"))
    rollback(target.cluster, "digits", 1, QUICK)
    target.broken.add(Deployed(OTHER, SETTINGS).prefix)
    with pytest.raises(DeployError):
        bring(OTHER, SETTINGS, Options(timeout_s=0.3, back=True))
    read_status(target.cluster, "digits")
    undeploy(target.cluster, "digits", QUICK)

    role = deployer_role()
    allowed = rights(role["rules"])
    kubelet = {("", "pods/status", "patch")}
    found = set(asked(target)) - kubelet
    found |= {(group, resource, "create") for group, resource, verb in found if verb == "patch" and "/" not in resource}
    assert found - allowed == set()
    if not monitored:
        allowed = {right for right in allowed if right[0] != "monitoring.coreos.com"}
    # a first look at a set may find it ready, then nothing is watched
    assert allowed - found <= {
        ("apps", "deployments", "watch"),
        ("apps", "statefulsets", "watch"),
        ("", "pods", "watch"),
    }
    assert schema_complaints([role]) == []
