"""The deployer's Role against what deployments really ask of a server: enough, and nothing beside it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from kubernetes import client

from jellybean.operator import resource_definition
from jellybean.operator.reconcile import Reconciler
from jellybean_k8s import (
    CONDITION_DEPLOYED,
    CONDITION_PLANNED,
    CONDITION_READY,
    Cluster,
    DeployError,
    DeploymentSettings,
    DeployOptions,
    ModelSource,
    PoolSettings,
    certificate_secrets,
    deploy,
    deployed_plan,
    deployer_role,
    dry_run,
    read_status,
    render,
    rollback,
    undeploy,
)
from jellybean_k8s.resource.rbac import operator_rules
from jellybean_solver import Plan
from tests.k8s_check import schema_complaints
from tests.k8s_plans import wide
from tests.k8s_resource import resource
from tests.k8s_target import OTHER, PLAN, QUICK, SETTINGS, Target, claim, define, monitored, real_only, with_pools

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
        if len(name) >= 2:  # a path to a pod follows pods/proxy
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
        reconciler.reconcile(cluster.get("Workflow", "digits") or {})
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


@contextlib.contextmanager
def granted(target: Target, rules: Sequence[Any]) -> Iterator[Cluster]:
    """The namespace, seen by a ServiceAccount with these rights and no others."""
    here, name = f"namespaces/{target.cluster.namespace}", "jellybean-test-rights"
    rbac = "rbac.authorization.k8s.io"
    user = {"kind": "ServiceAccount", "name": name, "namespace": target.cluster.namespace}
    role = {"apiGroup": rbac, "kind": "Role", "name": name}
    made = {
        f"/api/v1/{here}/serviceaccounts": {},
        f"/apis/{rbac}/v1/{here}/roles": {"rules": list(rules)},
        f"/apis/{rbac}/v1/{here}/rolebindings": {"roleRef": role, "subjects": [user]},
    }
    for path, body in made.items():
        target.kubelet._call("post", path, body={"metadata": {"name": name}, **body})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = target.kubelet._call("post", f"/api/v1/{here}/serviceaccounts/{name}/token", body=asked)
    configuration = copy.copy(target.kubelet.api.configuration)
    configuration.cert_file = configuration.key_file = configuration.refresh_api_key_hook = None
    configuration.api_key = {"authorization": f"Bearer {answer['status']['token']}"}
    yield Cluster(client.ApiClient(configuration), target.cluster.namespace)


@real_only
def test_deploying_takes_no_more_than_the_role(target: Target) -> None:
    with granted(target, deployer_role()["rules"]) as cluster:
        theirs = dataclasses.replace(target, cluster=cluster)
        assert theirs.deploy(wide(PLAN, "cloud", 4), with_pools(cloud=PoolSettings(autoscale=True))).number == 1
        assert theirs.deploy(OTHER).number == 2
        assert dry_run(cluster, deployed_plan(OTHER, SETTINGS), theirs.objects(OTHER)) == []
        assert rollback(cluster, "digits", 1, QUICK).number == 3
        target.broken.add(deployed_plan(OTHER, SETTINGS).prefix)
        with pytest.raises(DeployError, match="serves as before"):
            theirs.deploy(OTHER, options=DeployOptions(timeout_s=5.0, undo_failed=True))
        assert undeploy(cluster, "digits", QUICK)


@real_only
def test_operating_takes_no_more_than_the_operators_rules(target: Target) -> None:
    define(target, resource_definition())
    target.create(resource())
    with granted(target, operator_rules()) as cluster:
        reconciler = Reconciler(cluster, lambda: cluster.list("Node"))
        reconciler.reconcile(cluster.get("Workflow", "digits") or {})
        there = cluster.get("Workflow", "digits") or {}
        conditions = {item["type"]: item["status"] for item in there["status"]["conditions"]}
        reached = (CONDITION_PLANNED, CONDITION_DEPLOYED, CONDITION_READY)
        assert [conditions[kind] for kind in reached] == ["True"] * 3, there["status"]
        reconciler.remove(there)
        assert not target.names("StatefulSet")


def test_the_role_allows_what_deploying_takes_and_nothing_else(target: Target) -> None:
    with monitored(target):
        _role_allows_what_deploying_takes(target)


def _role_allows_what_deploying_takes(target: Target) -> None:
    scaled = dataclasses.replace(SETTINGS, pools={"cloud": PoolSettings(autoscale=True)})
    many = wide(PLAN, "cloud", 4)

    target.create(claim("models"))
    target.wire.log.clear()  # what the test asks for

    def bring(plan: Plan, settings: DeploymentSettings, options: DeployOptions = QUICK) -> None:
        deployed = deployed_plan(plan, settings, service_monitor=True)
        objects = (*certificate_secrets(deployed, target.certificates), *render(deployed))
        dry_run(target.cluster, deployed, objects)
        deploy(target.cluster, deployed, objects, options)

    bring(many, scaled)
    bring(OTHER, SETTINGS)
    bring(OTHER, dataclasses.replace(SETTINGS, agent_images={"cpu": "agent:2"}, models=ModelSource(claim="models")))
    rollback(target.cluster, "digits", 1, QUICK)
    target.broken.add(deployed_plan(OTHER, SETTINGS, service_monitor=True).prefix)
    with pytest.raises(DeployError):
        bring(OTHER, SETTINGS, DeployOptions(timeout_s=0.3, undo_failed=True))
    read_status(target.cluster, "digits")
    undeploy(target.cluster, "digits", QUICK)

    role = deployer_role()
    allowed = rights(role["rules"])
    kubelet = {("", "pods/status", "patch")}
    found = set(asked(target)) - kubelet
    found |= {(group, resource, "create") for group, resource, verb in found if verb == "patch" and "/" not in resource}
    assert found - allowed == set()
    # a first look at a set may find it ready, then nothing is watched
    assert allowed - found <= {
        ("apps", "deployments", "watch"),
        ("apps", "statefulsets", "watch"),
        ("", "pods", "watch"),
    }
    assert schema_complaints([role]) == []
