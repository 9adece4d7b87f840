"""Who may create a Workflow gets no rights of the operator by it.

Of nodes, Secrets, accounts and claims of others.
"""

from __future__ import annotations

from typing import Any

import pytest

from jellybean.operator import resource_definition
from jellybean.operator.permissions import USED_BY_LABEL, parse_permissions
from jellybean.operator.reconcile import Reconciler
from jellybean_k8s import CONDITION_DEPLOYED, CONDITION_PLANNED, CRD_KIND
from tests.k8s_resource import resource
from tests.k8s_target import Target, claim, define

THEIRS = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs"}, "data": {"password": "eA=="}}
Condition = dict[str, Any]


def conditions_of(target: Target, *rules: str, **kubernetes: Any) -> dict[str, Condition]:
    """The conditions of a resource with these keys of kubernetes.yaml, under these rules."""
    define(target, resource_definition())
    wanted = resource()
    wanted["spec"]["kubernetes"] |= kubernetes
    target.create(wanted)
    return looked_at(target, *rules)


def looked_at(target: Target, *rules: str) -> dict[str, Condition]:
    reconciler = Reconciler(target.cluster, target.nodes, permissions=parse_permissions(rules))
    there = target.cluster.get(CRD_KIND, "digits")
    assert there is not None
    reconciler.reconcile(there | {"apiVersion": "jellybean.dev/v1alpha1", "kind": CRD_KIND})
    after = target.cluster.get(CRD_KIND, "digits")
    assert after is not None
    return {item["type"]: item for item in after["status"]["conditions"]}


def refused(target: Target, *rules: str, **kubernetes: Any) -> str:
    """Why nothing was deployed."""
    found = conditions_of(target, *rules, **kubernetes)[CONDITION_DEPLOYED]
    assert (found["status"], found["reason"]) == ("False", "Refused")
    assert target.names("StatefulSet") == target.names("Deployment") == target.names("Secret") == set()
    return str(found["message"])


def test_a_patch_that_makes_privileged_pods_is_refused(target: Target) -> None:
    sidecar = {"name": "sneaky", "image": "evil", "securityContext": {"privileged": True}}
    patch = {"spec": {"hostPID": True, "containers": [sidecar], "serviceAccountName": "somebody-elses"}}
    told = refused(target, pods={"patch": patch})
    assert "spec.hostPID needs host-namespaces" in told
    assert "spec.containers[sneaky].securityContext.privileged needs privileged" in told
    assert "spec.serviceAccountName needs service-account=somebody-elses" in told
    assert "--allow-patch RULE" in told


def test_who_runs_the_operator_may_allow_it(target: Target) -> None:
    patch = {"spec": {"hostNetwork": True}}
    found = conditions_of(target, "host-namespaces", pools={"box": {"one_per_node": False, "patch": patch}})
    assert found[CONDITION_DEPLOYED]["status"] == "True"


def test_a_secret_of_others_is_for_whom_its_owner_labels_it(target: Target) -> None:
    target.cluster.create(THEIRS)
    ledger = {"url": "postgresql+psycopg://u@db.evil.example/x", "secret": "theirs"}
    told = refused(target, gateway={"ledger": ledger})
    assert f"Secret theirs is not labelled {USED_BY_LABEL}=digits" in told
    target.cluster.merge("Secret", "theirs", {"metadata": {"labels": {USED_BY_LABEL: "digits"}}})
    found = looked_at(target)[CONDITION_DEPLOYED]
    assert found["status"] == "True", found["message"]


@pytest.mark.parametrize(
    "keys",
    [
        {"models": {"url": "https://models.evil.example", "secret": "theirs"}},
        {"traces": {"endpoint": "https://evil.example:4318", "secret": "theirs"}},
        {"images": {"agent": {"cpu": "a"}, "gateway": "g", "pull_secrets": ["theirs"]}},
    ],
)
def test_no_key_of_the_resource_reads_a_secret_of_others(target: Target, keys: dict[str, Any]) -> None:
    target.cluster.create(THEIRS)
    assert "Secret theirs is not labelled" in refused(target, **keys)


def test_a_claim_of_others_is_not_mounted(target: Target) -> None:
    target.create(claim("theirs"))
    assert "PersistentVolumeClaim theirs is not labelled" in refused(target, models={"claim": "theirs"})


def test_a_name_that_others_have_gives_neither_their_account_nor_their_authority(target: Target) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "corp"}}
    target.cluster.create(account)
    target.cluster.create({**THEIRS, "metadata": {"name": "corp-authority"}})
    told = refused(target, name="corp")
    assert "ServiceAccount corp is not of deployment corp" in told
    assert "Secret corp-authority is not labelled" in told


def test_names_of_workflows_lead_out_of_no_folder(target: Target) -> None:
    define(target, resource_definition())
    one = resource()
    part = {key: one["spec"].pop(key) for key in ("sources", "operators", "profiles", "slo")}
    one["spec"]["workflows"] = {"../../../../../../../../tmp/evil": part}
    target.create(one)
    found = looked_at(target)[CONDITION_PLANNED]
    assert (found["status"], found["reason"]) == ("False", "InvalidSpec")
    assert "spec.workflows" in found["message"]
