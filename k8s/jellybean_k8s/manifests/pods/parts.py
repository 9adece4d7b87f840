"""Parts of pod templates that all components have: scheduling, security context, probes, graceful termination."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jellybean_k8s.manifests.deployed_plan import HEALTH_PORT, LIVENESS_SERVICE, METRICS_PORT, DeployedPlan
from jellybean_k8s.manifests.pod_settings import NUMBER_ENV
from jellybean_k8s.manifests.pods import commands
from jellybean_k8s.manifests.pods.layers import PodLayers, with_pod_settings
from jellybean_k8s.manifests.quantities import cores, mebibytes
from jellybean_k8s.manifests.settings import MIB
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_k8s.names import APP_PREFIX, OWN_PREFIX, label_value
from jellybean_k8s.objects import KubeObject

USER = 65532  # the conventional nonroot user
STOP_S = 10  # seconds from the end of a drain to SIGKILL
_EVERY_S = 5  # period of the readiness probe, in seconds
_LIVENESS_EVERY_S, _LIVENESS_MISSES = 10, 6  # a worker in a long run may answer late; a dead one is found in a minute
_STARTING_EVERY_S = 2
_LOCAL_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
_SCRAPED = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS_PORT), "prometheus.io/path": "/metrics"}


def pod_template(deployed: DeployedPlan, own: Mapping[str, str], spec: KubeObject, layers: PodLayers) -> KubeObject:
    """Template of a set: labels, annotations, and the settings of pods laid over it."""
    annotations = {f"{OWN_PREFIX}/config": deployed.config, f"{OWN_PREFIX}/plan-hash": str(deployed.document["hash"])}
    annotations[_LOCAL_VOLUMES] = ",".join(volume["name"] for volume in spec["volumes"] if "emptyDir" in volume)
    if not deployed.service_monitor or deployed.cluster is not None:
        annotations |= _SCRAPED
    template = {"metadata": {"labels": dict(own), "annotations": annotations}, "spec": spec}
    return with_pod_settings(template, layers)


def pod_spec(
    deployed: DeployedPlan, init: Sequence[KubeObject], containers: Sequence[KubeObject], tier: str
) -> KubeObject:
    """What the pods of all components have in common."""
    settings = deployed.settings
    found: KubeObject = {
        "serviceAccountName": deployed.app,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s(settings.drain_s, settings.pre_stop_s),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": list(init),
        "containers": list(containers),
    }
    if settings.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in dict.fromkeys(settings.image_pull_secrets)]
    return found


def grace_s(drain_s: float, pre_stop_s: int) -> int:
    """Termination grace period: preStop delay, drain, shutdown."""
    return pre_stop_s + math.ceil(drain_s) + STOP_S


def container(
    name: str, image: str, command: tuple[Sequence[str], Sequence[str]], ports: Mapping[str, int], needed: KubeObject
) -> KubeObject:
    """A container without rights. `command`: with arguments; `ports`: by name."""
    found: KubeObject = {"name": name, "image": image, "command": list(command[0]), "args": list(command[1])}
    if ports:
        found["ports"] = [{"name": key, "containerPort": port, "protocol": "TCP"} for key, port in ports.items()]
    found["resources"] = needed
    found["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    return found


def prepare_container(image: str, command: tuple[Sequence[str], Sequence[str]]) -> KubeObject:
    """The init container. It has the pod's own image, so that a node pulls no second one."""
    return container("prepare", image, command, {}, container_resources(0.1, 64 * MIB, 256 * MIB))


def field_env(name: str, path: str) -> KubeObject:
    """Environment variable with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def worker_number_env(group: WorkerGroup) -> list[KubeObject]:
    """Environment variable with the pod's ordinal; empty for a worker without a number."""
    if group.first is None:
        return []
    label = "metadata.labels['apps.kubernetes.io/pod-index']"
    return [field_env(NUMBER_ENV, label)]


def container_resources(cpu: float, request_bytes: int, limit_bytes: int) -> KubeObject:
    """Resource requests and limits of a container. No CPU limit unless `cpu_limit` is set: throttling adds latency."""
    return {
        "requests": {"cpu": cores(cpu), "memory": mebibytes(request_bytes)},
        "limits": {"memory": mebibytes(limit_bytes)},
    }


def _probe(how: KubeObject, every_s: int, misses: int) -> KubeObject:
    return {**how, "periodSeconds": every_s, "timeoutSeconds": min(every_s, 5), "failureThreshold": misses}


def probes(start_s: float, *, loads: bool, port: int = HEALTH_PORT) -> KubeObject:
    """Startup, readiness and liveness probes. Liveness only tests that the process answers: a pod may be unready
    because of another pod, which no restart would fix.
    """
    ready, live = ({"grpc": {"port": port, "service": name}} for name in ("", LIVENESS_SERVICE))
    return {
        "startupProbe": _probe(
            ready if loads else live, _STARTING_EVERY_S, max(1, math.ceil(start_s / _STARTING_EVERY_S))
        ),
        "readinessProbe": _probe(ready, _EVERY_S, 2),
        "livenessProbe": _probe(live, _LIVENESS_EVERY_S, _LIVENESS_MISSES),
    }


def pre_stop(seconds: int) -> KubeObject:
    """Delay during which endpoints are updated, before the process refuses new requests."""
    return {"preStop": {"sleep": {"seconds": seconds}}}


def affinity(deployed: DeployedPlan, tier: str, group: WorkerGroup | None) -> KubeObject:
    """Nodes of the tier, and of a group's site and pool; workers that are devices get a node each."""
    settings = deployed.settings
    wanted = {settings.tier_label: label_value(tier)}
    pool = settings.of_pool(group.pool) if group is not None else None
    if group is not None and group.site is not None:
        wanted[settings.site_label] = label_value(group.site)
    if pool is not None:
        wanted |= pool.node_labels
    terms = [{"key": key, "operator": "In", "values": [value]} for key, value in wanted.items()]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": terms}]}}
    found: KubeObject = {"nodeAffinity": required}
    alone = tier in deployed.edge_tiers if pool is None or pool.one_per_node is None else pool.one_per_node
    if group is not None and alone:  # a worker is a device, so agents of all pools exclude each other
        same = {
            f"{APP_PREFIX}/instance": deployed.app,
            f"{APP_PREFIX}/component": "agent",
            f"{OWN_PREFIX}/plan": deployed.id,
        }
        rule = {"labelSelector": {"matchLabels": same}, "topologyKey": "kubernetes.io/hostname"}
        found["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}
    return found


def tolerate_any(key: str) -> KubeObject:
    """Tolerate a taint with this key, whatever its value."""
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def tolerations(deployed: DeployedPlan, tier: str) -> list[KubeObject]:
    """Taints of the tier's nodes; in edge tiers also nodes that are unreachable for long."""
    label = deployed.settings.tier_label
    found: list[KubeObject] = [
        {"key": label, "operator": "Equal", "value": label_value(tier), "effect": effect}
        for effect in ("NoSchedule", "NoExecute")
    ]
    if tier in deployed.edge_tiers:
        found += [
            {
                "key": f"node.kubernetes.io/{state}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": deployed.settings.unreachable_s,
            }
            for state in ("unreachable", "not-ready")
        ]
    return found


def spread(own: Mapping[str, str]) -> list[KubeObject]:
    """Prefer a zone and a node for each pod."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(own)},
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]


def mounts(*models: str, written: bool = False) -> list[KubeObject]:
    """Volumes that all containers mount; `models`: names of those with models, which the init container writes."""
    found: list[KubeObject] = [
        {"name": "files", "mountPath": commands.FILES, "readOnly": True},
        {"name": "tls", "mountPath": commands.SECRETS, "readOnly": True},
        {"name": "run", "mountPath": commands.RUN},
    ]
    return found + [{"name": name, "mountPath": commands.MODELS, "readOnly": not written} for name in models]


def volumes(deployed: DeployedPlan, secret: str) -> list[KubeObject]:
    """Volumes of all pods. `secret`: with the certificate."""
    return [
        {"name": "files", "configMap": {"name": deployed.config}},
        {"name": "tls", "secret": {"secretName": secret, "defaultMode": 0o440}},
        {"name": "run", "emptyDir": {"sizeLimit": "64Mi"}},
    ]
