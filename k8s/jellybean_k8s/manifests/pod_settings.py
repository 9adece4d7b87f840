"""Settings of pods that the plan does not decide: CPU limit, priority, labels, tolerations, environment, a patch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jellybean_k8s.errors import DeployError
from jellybean_k8s.names import APP_PREFIX, OWN_PREFIX

# Variables that our containers get from us: a pod's ordinal, its name and namespace, its IP address if it is one of
# several gateways, secrets of the ledger and of the models' server, and its node, for traces
NUMBER_ENV, POD_NAME_ENV, NAMESPACE_ENV, REPLY_HOST_ENV = "WORKER_NUMBER", "POD_NAME", "POD_NAMESPACE", "REPLY_HOST"
PASSWORD_ENV, AUTHORIZATION_ENV, NODE_NAME_ENV = "PGPASSWORD", "AUTHORIZATION", "JELLYBEAN_NODE_NAME"
OWN_ENV = (NUMBER_ENV, POD_NAME_ENV, NAMESPACE_ENV, REPLY_HOST_ENV, PASSWORD_ENV, AUTHORIZATION_ENV, NODE_NAME_ENV)
_CONTROLLERS_LABELS = frozenset(  # that Kubernetes writes itself
    {
        "apps.kubernetes.io/pod-index",
        "controller-revision-hash",
        "pod-template-hash",
        "statefulset.kubernetes.io/pod-name",
    }
)
ServiceType = Literal["ClusterIP", "NodePort", "LoadBalancer"]


def is_own_label(key: str) -> bool:
    """True for labels of pods by which their sets, Services and policies find them: nobody else may set them."""
    return key.startswith((f"{OWN_PREFIX}/", f"{APP_PREFIX}/")) or key in _CONTROLLERS_LABELS


def is_own_annotation(key: str) -> bool:
    """True for annotations of pods that deploying reads."""
    return key.startswith(f"{OWN_PREFIX}/")


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Settings of a component's pods. DeployError if they would change what the deployment depends on.

    `cpu_limit`: cores; None for no limit. `priority`: a PriorityClass. `tolerations`: beside ours, with Kubernetes'
    keys. `env`: variables of all containers. `runtime_class`: a RuntimeClass. `patch`: merged into the pod template
    (`pod_patch.patched`).
    """

    cpu_limit: float | None = None
    priority: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    runtime_class: str | None = None
    patch: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse keys that are ours."""
        for name, own in (
            ("labels", filter(is_own_label, self.labels)),
            ("annotations", filter(is_own_annotation, self.annotations)),
            ("env", (key for key in self.env if key in OWN_ENV)),
        ):
            if (key := next(iter(own), None)) is not None:
                raise DeployError(f"{name}: {key} is set by JellyBean: remove it")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How clients reach the gateway's Service. `annotations`: for what makes load balancers."""

    type: ServiceType = "ClusterIP"
    annotations: Mapping[str, str] = field(default_factory=dict)
