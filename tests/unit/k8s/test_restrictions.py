"""What pods ask for beyond the Pod Security level `baseline`, by whatever key of the settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jellybean.operator.permissions import parse_permissions
from jellybean_k8s import (
    POD_RULES,
    ModelCache,
    ModelSource,
    PodSettings,
    deployed_plan,
    render,
    restricted_fields,
    used_objects,
)
from tests.k8s_target import PLAN, SETTINGS


def rendered(patch: dict[str, Any] | None = None, **settings: Any) -> tuple[Any, ...]:
    pods = PodSettings(patch=patch or {})
    return render(deployed_plan(PLAN, dataclasses.replace(SETTINGS, pods=pods, **settings)))


def rules(objects: tuple[Any, ...]) -> set[str]:
    return {field.rule for field in restricted_fields(objects, "digits")}


def of_a_sidecar(**keys: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "sneaky", "image": "x", **keys}]}}


def of_a_volume(**kind: Any) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": "v", **kind}]}}


def of_a_claim_of_its_own(**spec: Any) -> dict[str, Any]:
    return of_a_volume(ephemeral={"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], **spec}}})


def in_context(**keys: Any) -> dict[str, Any]:
    return of_a_sidecar(securityContext=keys)


ASKED = [
    ("host-namespaces", {"spec": {"hostNetwork": True}}),
    ("host-namespaces", {"spec": {"hostIPC": True}}),
    ("privileged", in_context(privileged=True)),
    ("privileged", {"spec": {"initContainers": [{"name": "prepare", "securityContext": {"privileged": True}}]}}),
    ("capabilities", in_context(capabilities={"add": ["SYS_ADMIN"]})),
    ("host-path", of_a_volume(hostPath={"path": "/"})),
    ("host-ports", of_a_sidecar(ports=[{"containerPort": 1, "hostPort": 1}])),
    ("host-probes", of_a_sidecar(livenessProbe={"httpGet": {"host": "169.254.169.254", "port": 80}})),
    ("host-probes", of_a_sidecar(lifecycle={"postStart": {"tcpSocket": {"host": "10.0.0.1", "port": 80}}})),
    ("app-armor", in_context(appArmorProfile={"type": "Unconfined"})),
    ("app-armor", {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/x": "unconfined"}}}),
    ("selinux", {"spec": {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}}),
    ("selinux", in_context(seLinuxOptions={"user": "system_u"})),
    ("proc-mount", in_context(procMount="Unmasked")),
    ("seccomp", {"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}),
    ("seccomp", {"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}}),
    ("sysctls", {"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}}),
    ("windows-host-process", in_context(windowsOptions={"hostProcess": True})),
    ("volumes", of_a_volume(csi={"driver": "secrets-store.csi.k8s.io"})),
    ("volumes", of_a_volume(nfs={"server": "s", "path": "/"})),
    ("volumes", of_a_claim_of_its_own(dataSource={"kind": "PersistentVolumeClaim", "name": "theirs"})),
    ("volumes", of_a_claim_of_its_own(dataSourceRef={"kind": "VolumeSnapshot", "name": "s", "namespace": "theirs"})),
    ("volumes", of_a_claim_of_its_own(volumeName="theirs")),
    ("volumes", of_a_claim_of_its_own(storageClassName="theirs")),
    ("service-account", {"spec": {"serviceAccountName": "somebody-elses"}}),
    ("service-account", {"spec": {"serviceAccount": "somebody-elses"}}),
    ("service-account", {"spec": {"automountServiceAccountToken": True}}),
    ("service-account", {"spec": {"automountServiceAccountToken": None}}),
    ("service-account", of_a_volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]})),
]


@pytest.mark.parametrize(("rule", "patch"), ASKED)
def test_what_a_patch_asks_for_has_its_rule(rule: str, patch: dict[str, Any]) -> None:
    assert rules(rendered(patch)) == {rule}
    assert rule in POD_RULES


def test_pods_as_they_are_ask_for_nothing() -> None:
    assert rules(rendered()) == set()
    harmless = {"securityContext": {"capabilities": {"add": ["CHOWN"]}, "seccompProfile": {"type": "Localhost"}}}
    assert rules(rendered(of_a_sidecar(**harmless))) == set()
    assert {kind for kind, _ in used_objects(rendered())} == {"Secret"}
    assert all(name.startswith("digits-") for _, name in used_objects(rendered()))


def test_it_does_not_matter_which_key_asks() -> None:
    cached = rendered(models=ModelSource("https://models.example", cache=ModelCache(host_path="/var/models")))
    assert rules(cached) == {"host-path"}


@pytest.mark.parametrize(
    "patch",
    [
        of_a_sidecar(envFrom=[{"secretRef": {"name": "theirs"}}]),
        of_a_sidecar(env=[{"name": "P", "valueFrom": {"secretKeyRef": {"name": "theirs", "key": "k"}}}]),
        of_a_volume(secret={"secretName": "theirs"}),
        of_a_volume(projected={"sources": [{"secret": {"name": "theirs"}}]}),
        {"spec": {"imagePullSecrets": [{"name": "theirs"}]}},
    ],
)
def test_secrets_are_found_wherever_pods_name_them(patch: dict[str, Any]) -> None:
    assert ("Secret", "theirs") in set(used_objects(rendered(patch)))


def test_claims_are_found_too() -> None:
    patch = of_a_volume(persistentVolumeClaim={"claimName": "theirs"})
    assert ("PersistentVolumeClaim", "theirs") in set(used_objects(rendered(patch)))
    assert ("PersistentVolumeClaim", "m") in set(used_objects(rendered(models=ModelSource(claim="m"))))


@pytest.mark.parametrize("rule", ["", "hostpath", "secret=", "host-path=x", "privileged,host-path", "all"])
def test_what_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="is no rule; the rules: any, app-armor"):
        parse_permissions([rule])


def test_a_rule_may_be_for_one_object() -> None:
    allowed = parse_permissions(["secret=mine", "host-path"])
    assert allowed.allows("secret", "mine") and allowed.allows("host-path")
    assert not allowed.allows("secret", "theirs") and not allowed.allows("privileged")
    assert parse_permissions(["any"]).allows("privileged") and parse_permissions(["secret"]).allows("secret", "theirs")
