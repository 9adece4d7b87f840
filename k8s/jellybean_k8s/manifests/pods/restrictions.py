"""What pod templates ask for beyond the Pod Security level `baseline`, and which objects they use.

Pure.

An operator has more rights than the authors of its resources, and makes pods in its own name: what a resource asks of
pods is what its author may do. So the rendered templates are looked at, whichever key of the resource they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jellybean_k8s.objects import KubeObjectView

# kubernetes.io/docs/concepts/security/pod-security-standards, "Baseline", of Kubernetes 1.34
_CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)
_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_APP_ARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_ANNOTATIONS = ("seccomp.security.alpha.kubernetes.io/pod", "container.seccomp.security.alpha.kubernetes.io/")
# Stricter than `baseline`: other volumes reach storage and secrets by a driver's rights, not by the namespace's.
# `ephemeral` is none of them: the claim that it makes may clone or bind storage of others, and names no claim itself.
_VOLUMES = frozenset(
    {
        "configMap",
        "downwardAPI",
        "emptyDir",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
SERVICE_ACCOUNT_RULE = "service-account"
POD_RULES = (  # what may be allowed, by the names of its rules
    "app-armor",
    "capabilities",
    "host-namespaces",
    "host-path",
    "host-ports",
    "host-probes",
    "privileged",
    "proc-mount",
    "seccomp",
    "selinux",
    SERVICE_ACCOUNT_RULE,
    "sysctls",
    "volumes",
    "windows-host-process",
)


@dataclass(frozen=True, slots=True)
class Restricted:
    """A field that a rule refuses. `path`: of the field, in a set's pod template.

    `name`: of the object it names.
    """

    rule: str
    path: str
    name: str = ""


def restricted_fields(objects: Iterable[KubeObjectView], account: str) -> Iterator[Restricted]:
    """The fields of pod templates that a rule of `POD_RULES` refuses.

    `account`: the pods' ServiceAccount.
    """
    for name, template in _templates(objects):
        spec = _map(template.get("spec"))
        for key in ("serviceAccountName", "serviceAccount"):
            if spec.get(key) not in (None, account):
                yield Restricted(SERVICE_ACCOUNT_RULE, f"{name}: spec.{key}", str(spec[key]))
        yield from (Restricted(rule, f"{name}: {path}") for rule, path in _of_pod(spec))
        yield from (Restricted(rule, f"{name}: {path}") for rule, path in _of_annotations(template))
        for path, container in _containers(spec):
            yield from (Restricted(rule, f"{name}: {path}.{at}") for rule, at in _of_container(container))


def used_objects(objects: Iterable[KubeObjectView]) -> Iterator[tuple[str, str]]:
    """(kind, name) of the Secrets and PersistentVolumeClaims that pods use."""
    for _, template in _templates(objects):
        spec = _map(template.get("spec"))
        secrets = [item.get("name") for item in _maps(spec.get("imagePullSecrets"))]
        for _, container in _containers(spec):
            secrets += [_map(item.get("secretRef")).get("name") for item in _maps(container.get("envFrom"))]
            sources = (_map(item.get("valueFrom")) for item in _maps(container.get("env")))
            secrets += [_map(source.get("secretKeyRef")).get("name") for source in sources]
        for volume in _maps(spec.get("volumes")):
            secrets.append(_map(volume.get("secret")).get("secretName"))
            projected = _maps(_map(volume.get("projected")).get("sources"))
            secrets += [_map(source.get("secret")).get("name") for source in projected]
            if claim := _map(volume.get("persistentVolumeClaim")).get("claimName"):
                yield "PersistentVolumeClaim", str(claim)
        yield from (("Secret", str(secret)) for secret in secrets if secret)


def _templates(objects: Iterable[KubeObjectView]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for item in objects:
        template = _map(item.get("spec")).get("template")
        if isinstance(template, Mapping):
            yield str(item["metadata"]["name"]), template


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key in _CONTAINERS:
        for container in _maps(spec.get(key)):
            yield f"spec.{key}[{container.get('name')}]", container


def _of_pod(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from (("host-namespaces", f"spec.{key}") for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key))
    yield from ((rule, f"spec.securityContext.{at}") for rule, at in _of_context(_map(spec.get("securityContext"))))
    for volume in _maps(spec.get("volumes")):
        yield from ((rule, f"spec.volumes[{volume.get('name')}]{at}") for rule, at in _of_volume(volume))
    if spec.get("automountServiceAccountToken") is not False:
        yield SERVICE_ACCOUNT_RULE, "spec.automountServiceAccountToken"


def _of_volume(volume: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind in sorted(volume.keys() - _VOLUMES - {"name"}):
        yield "host-path" if kind == "hostPath" else "volumes", f".{kind}"
    for source in _maps(_map(volume.get("projected")).get("sources")):
        yield from ((SERVICE_ACCOUNT_RULE, ".projected.serviceAccountToken") for key in source if _is_token(key))


def _is_token(source: str) -> bool:
    """True for a source of a projected volume that proves an identity of the pod."""
    return source in ("serviceAccountToken", "podCertificate")


def _of_annotations(template: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in _map(_map(template.get("metadata")).get("annotations")).items():
        profile = str(value)
        is_bound = profile == "runtime/default" or profile.startswith("localhost/")
        if key.startswith(_APP_ARMOR_ANNOTATION) and not is_bound:
            yield "app-armor", f"metadata.annotations[{key}]"
        if key.startswith(_SECCOMP_ANNOTATIONS) and not is_bound and profile != "docker/default":
            yield "seccomp", f"metadata.annotations[{key}]"


def _of_container(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    context = _map(container.get("securityContext"))
    yield from ((rule, f"securityContext.{at}") for rule, at in _of_context(context))
    if context.get("privileged"):
        yield "privileged", "securityContext.privileged"
    added = _map(context.get("capabilities")).get("add") or ()
    if not set(map(str, added)) <= _CAPABILITIES:
        yield "capabilities", "securityContext.capabilities.add"
    if context.get("procMount") not in (None, "Default"):
        yield "proc-mount", "securityContext.procMount"
    yield from (("host-ports", "ports") for port in _maps(container.get("ports")) if port.get("hostPort"))
    hooks = _map(container.get("lifecycle"))
    probes = {key: container.get(key) for key in ("livenessProbe", "readinessProbe", "startupProbe")}
    for key, probe in {**probes, **{f"lifecycle.{name}": hook for name, hook in hooks.items()}}.items():
        for way in ("httpGet", "tcpSocket"):
            if _map(_map(probe).get(way)).get("host"):
                yield "host-probes", f"{key}.{way}.host"


def _of_context(context: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The rules for what a pod's and a container's security context have in common."""
    if _map(context.get("windowsOptions")).get("hostProcess"):
        yield "windows-host-process", "windowsOptions.hostProcess"
    selinux = _map(context.get("seLinuxOptions"))
    if selinux.get("type") not in (None, *_SELINUX_TYPES) or selinux.get("user") or selinux.get("role"):
        yield "selinux", "seLinuxOptions"
    for rule, key in (("seccomp", "seccompProfile"), ("app-armor", "appArmorProfile")):
        if _map(context.get(key)).get("type") not in (None, "RuntimeDefault", "Localhost"):
            yield rule, key
    if not {str(item.get("name")).replace("/", ".") for item in _maps(context.get("sysctls"))} <= _SYSCTLS:
        yield "sysctls", "sysctls"


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: Any) -> Iterator[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, list | tuple) else iter(())
