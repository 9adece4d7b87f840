"""The checks of the restricted Pod Security Standard, written from the standard and not from what is rendered.

https://kubernetes.io/docs/concepts/security/pod-security-standards/, baseline and restricted, for Linux pods; volumes
of the type `image` are admitted since Kubernetes 1.33 (kubernetes/kubernetes#130394).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_SECCOMP = ("RuntimeDefault", "Localhost")
_SYSCTLS = frozenset({"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"})
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")


def violations(pod: Mapping[str, Any]) -> list[str]:
    """What the restricted level refuses in the spec of a pod; empty if it admits the pod."""
    return [*_pod_violations(pod), *(text for one in _containers(pod) for text in _container_violations(one, pod))]


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for key in ("initContainers", "containers", "ephemeralContainers") for one in pod.get(key) or ()]


def _pod_violations(pod: Mapping[str, Any]) -> Iterator[str]:
    own = pod.get("securityContext") or {}
    yield from (key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key))
    for volume in pod.get("volumes") or ():
        if strange := set(volume) - {"name"} - _VOLUMES:
            yield f"restricted volume types: {volume['name']} {sorted(strange)}"
    if strange := {one["name"] for one in own.get("sysctls") or ()} - _SYSCTLS:
        yield f"forbidden sysctls {sorted(strange)}"
    if own.get("runAsUser") == 0:
        yield "runAsUser=0"
    yield from _options(own, "pod")


def _options(own: Mapping[str, Any], name: str) -> Iterator[str]:
    """Options of SELinux, AppArmor and Windows, of a pod's or a container's security context."""
    selinux = own.get("seLinuxOptions") or {}
    if selinux.get("type", "") not in _SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{name}: seLinuxOptions {selinux}"
    if (own.get("appArmorProfile") or {}).get("type", "RuntimeDefault") == "Unconfined":
        yield f"{name}: unconfined by AppArmor"
    if (own.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{name}: hostProcess"


def _container_violations(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    own, whole, name = container.get("securityContext") or {}, pod.get("securityContext") or {}, container["name"]
    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation != false"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()) or set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield f"{name}: unrestricted capabilities {capabilities}"
    if own.get("runAsNonRoot", whole.get("runAsNonRoot")) is not True:
        yield f"{name}: runAsNonRoot != true"
    if own.get("runAsUser") == 0:
        yield f"{name}: runAsUser=0"
    if (own.get("seccompProfile") or whole.get("seccompProfile") or {}).get("type") not in _SECCOMP:
        yield f"{name}: seccompProfile"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    yield from _host_network(container)
    yield from _options(own, name)


def _host_network(container: Mapping[str, Any]) -> Iterator[str]:
    name = container["name"]
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield f"{name}: hostPort"
    for hook in (*(container.get("lifecycle") or {}).values(), *(container.get(f"{p}Probe") for p in _PROBES)):
        if any((hook or {}).get(how, {}).get("host") for how in ("httpGet", "tcpSocket")):
            yield f"{name}: a probe or hook with a host"


_PROBES = ("startup", "readiness", "liveness")
