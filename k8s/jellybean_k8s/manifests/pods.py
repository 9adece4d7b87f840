"""Pod templates: where a pod may run, what it may do, how it is asked whether it lives, how it leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jellybean_k8s.manifests import commands
from jellybean_k8s.manifests.served import AGENT_PORT, CLIENT_PORT, HEALTH_PORT, LIVE, METRICS_PORT, Deployed
from jellybean_k8s.manifests.settings import MIB
from jellybean_k8s.manifests.workers import Group
from jellybean_k8s.names import APP, MANAGER, OWN, label_value

Object = dict[str, Any]

AGENT_BASE_BYTES = 256 * MIB  # of an agent without models: Python, gRPC, ONNX Runtime
USER = 65532  # nobody in particular
STOP_S = 10  # from the end of a drain to SIGKILL
_EVERY_S = 5  # readiness
_LIVENESS_EVERY_S, _LIVENESS_MISSES = 10, 6  # a worker busy with a large run may be late; a dead one has a minute
_STARTING_EVERY_S = 2
SPOOL_VOLUME = "spool"
_SPREAD = "topologySpreadConstraints"


def labels(deployed: Deployed, component: str, group: Group | None = None) -> dict[str, str]:
    """Recommended labels and our own, of an object of this plan."""
    found = {
        f"{APP}/name": "jellybean",
        f"{APP}/instance": deployed.app,
        f"{APP}/component": component,
        f"{APP}/part-of": label_value(deployed.plan.name),
        f"{APP}/managed-by": MANAGER,
        f"{APP}/version": label_value(deployed.settings.version),
        f"{OWN}/plan": deployed.id,
    }
    if group is not None:
        found |= {f"{OWN}/set": deployed.set_name(group), f"{OWN}/pool": label_value(group.pool)}
        found |= {f"{OWN}/tier": label_value(group.tier)}
        if group.site is not None:
            found[f"{OWN}/site"] = label_value(group.site)
    return found


def selector(deployed: Deployed, component: str, group: Group | None = None) -> dict[str, str]:
    """The few labels that tell these pods from all others, and that never change for them."""
    found = {f"{APP}/instance": deployed.app, f"{APP}/component": component, f"{OWN}/plan": deployed.id}
    return found | ({f"{OWN}/set": deployed.set_name(group)} if group is not None else {})


def agent_template(deployed: Deployed, group: Group) -> Object:
    """Of the pods of one group: each is one worker of the plan, told by its number."""
    settings = deployed.settings
    pool = settings.of_pool(group.pool)
    needs = math.ceil(pool.memory_bytes or group.needs_bytes + AGENT_BASE_BYTES)
    most = max(needs, math.ceil(group.memory_bytes or 1.5 * needs))
    resources = _resources(pool.cpu, needs, most)
    if pool.gpu_resource is not None:
        resources["limits"][pool.gpu_resource] = str(pool.gpus)  # a GPU's request is its limit
    ports = {"agent": AGENT_PORT, "health": HEALTH_PORT, "metrics": METRICS_PORT}
    agent = _container(
        "agent", settings.agent_image, commands.agent(deployed, group, most - AGENT_BASE_BYTES), ports, resources
    )
    agent |= {"env": _numbered(group), "volumeMounts": _mounts("models"), **_probes(settings.start_s, loads=True)}
    agent["lifecycle"] = _pre_stop(settings.pre_stop_s)
    prepare = _prepare(deployed, commands.prepare(deployed, group))
    prepare |= {"env": [*_numbered(group), *_authorization(deployed)]}
    prepare["volumeMounts"] = _mounts("models", written=settings.models.url is not None)
    spec = _pod(deployed, [prepare], [agent], group.tier)
    spec["affinity"] = _affinity(deployed, group.tier, group)
    gpu_taints = [_tolerates(pool.gpu_resource)] if pool.gpu_resource is not None else []
    spec["tolerations"] = [*_tolerations(deployed, group.tier), *gpu_taints]
    spec[_SPREAD] = _spread(selector(deployed, "agent", group))
    spec["volumes"] = [*_volumes(deployed, commands.tls_secret(deployed, group)), _models(deployed, group)]
    return _template(deployed, labels(deployed, "agent", group), spec)


def gateway_template(deployed: Deployed) -> Object:
    """Of the gateway's pod."""
    settings, tier = deployed.settings, deployed.gateway_tier
    memory = math.ceil(settings.gateway_memory_bytes)
    ports = {"grpc": CLIENT_PORT, "agents": AGENT_PORT, "health": HEALTH_PORT}
    resources = _resources(settings.gateway_cpu, memory, memory)
    gateway = _container("gateway", settings.gateway_image, commands.gateway(deployed), ports, resources)
    gateway |= {"volumeMounts": _mounts(), **_probes(settings.start_s, loads=False)}
    gateway["lifecycle"] = _pre_stop(settings.pre_stop_s)
    prepare = _prepare(deployed, commands.prepare(deployed, None)) | {"volumeMounts": _mounts()}
    spec = _pod(deployed, [prepare], [gateway], tier)
    spec["affinity"] = _affinity(deployed, tier, None)
    spec["tolerations"] = _tolerations(deployed, tier)
    spec[_SPREAD] = _spread(selector(deployed, "gateway"))
    spec["volumes"] = _volumes(deployed, commands.tls_secret(deployed, None))
    if deployed.spools:
        gateway["volumeMounts"].append({"name": SPOOL_VOLUME, "mountPath": commands.SPOOL})
        claim = {"claimName": settings.gateway_spool, "readOnly": False}
        spec["volumes"].append({"name": SPOOL_VOLUME, "persistentVolumeClaim": claim})
    return _template(deployed, labels(deployed, "gateway"), spec)


def _template(deployed: Deployed, own: Mapping[str, str], spec: Object) -> Object:
    annotations = {f"{OWN}/config": deployed.config, f"{OWN}/plan-hash": str(deployed.document["hash"])}
    return {"metadata": {"labels": dict(own), "annotations": annotations}, "spec": spec}


def _pod(deployed: Deployed, init: Sequence[Object], containers: Sequence[Object], tier: str) -> Object:
    settings = deployed.settings
    found: Object = {
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
        found["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return found


def grace_s(drain_s: float, pre_stop_s: int) -> int:
    """Seconds a pod has to leave: before it is told, to drain, to stop."""
    return pre_stop_s + math.ceil(drain_s) + STOP_S


def _container(
    name: str, image: str, command: tuple[Sequence[str], Sequence[str]], ports: Mapping[str, int], resources: Object
) -> Object:
    found: Object = {"name": name, "image": image, "command": list(command[0]), "args": list(command[1])}
    if ports:
        found["ports"] = [{"name": key, "containerPort": port, "protocol": "TCP"} for key, port in ports.items()]
    found["resources"] = resources
    found["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    return found


def _prepare(deployed: Deployed, command: tuple[Sequence[str], Sequence[str]]) -> Object:
    return _container("prepare", deployed.settings.agent_image, command, {}, _resources(0.1, 64 * MIB, 256 * MIB))


def _numbered(group: Group) -> list[Object]:
    """The pod's number, which is its worker's; nothing for a worker that has none."""
    if group.first is None:
        return []
    label = "metadata.labels['apps.kubernetes.io/pod-index']"
    return [{"name": commands.NUMBER, "valueFrom": {"fieldRef": {"fieldPath": label}}}]


def _authorization(deployed: Deployed) -> list[Object]:
    name = deployed.settings.models.secret
    if name is None:
        return []
    return [{"name": "AUTHORIZATION", "valueFrom": {"secretKeyRef": {"name": name, "key": "authorization"}}}]


def _resources(cpu: float, request_bytes: int, limit_bytes: int) -> Object:
    """No CPU limit: a worker may use what is idle, and throttling would show as latency."""
    return {
        "requests": {"cpu": cores(cpu), "memory": mebibytes(request_bytes)},
        "limits": {"memory": mebibytes(limit_bytes)},
    }


def cores(cpu: float) -> str:
    """`2` or `250m`, as the API server writes it."""
    milli = max(1, math.ceil(cpu * 1000 - 1e-6))
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def mebibytes(size: float) -> str:
    """`256Mi`, `2Gi`: rounded up, as the API server writes it."""
    count = max(1, math.ceil(size / MIB))
    return f"{count // 1024}Gi" if count % 1024 == 0 else f"{count}Mi"


def _probe(how: Object, every_s: int, misses: int) -> Object:
    return {**how, "periodSeconds": every_s, "timeoutSeconds": min(every_s, 5), "failureThreshold": misses}


def _probes(start_s: float, *, loads: bool) -> Object:
    """A pod lives as long as its process answers: it may not be ready for others are away, which no restart mends."""
    ready, live = ({"grpc": {"port": HEALTH_PORT, "service": name}} for name in ("", LIVE))
    return {
        "startupProbe": _probe(
            ready if loads else live, _STARTING_EVERY_S, max(1, math.ceil(start_s / _STARTING_EVERY_S))
        ),
        "readinessProbe": _probe(ready, _EVERY_S, 2),
        "livenessProbe": _probe(live, _LIVENESS_EVERY_S, _LIVENESS_MISSES),
    }


def _pre_stop(seconds: int) -> Object:
    """Time for endpoints to be forgotten, before the process refuses what is new."""
    return {"preStop": {"sleep": {"seconds": seconds}}}


def _affinity(deployed: Deployed, tier: str, group: Group | None) -> Object:
    settings = deployed.settings
    wanted = {settings.tier_label: label_value(tier)}
    pool = settings.of_pool(group.pool) if group is not None else None
    if group is not None and group.site is not None:
        wanted[settings.site_label] = label_value(group.site)
    if pool is not None:
        wanted |= pool.node_labels
    terms = [{"key": key, "operator": "In", "values": [value]} for key, value in wanted.items()]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": terms}]}}
    found: Object = {"nodeAffinity": required}
    alone = tier in deployed.edge_tiers if pool is None or pool.one_per_node is None else pool.one_per_node
    if group is not None and alone:  # a worker is a device, whichever pool it is of
        same = {f"{APP}/instance": deployed.app, f"{APP}/component": "agent", f"{OWN}/plan": deployed.id}
        rule = {"labelSelector": {"matchLabels": same}, "topologyKey": "kubernetes.io/hostname"}
        found["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}
    return found


def _tolerates(key: str) -> Object:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def _tolerations(deployed: Deployed, tier: str) -> list[Object]:
    label = deployed.settings.tier_label
    found: list[Object] = [
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


def _spread(own: Mapping[str, str]) -> list[Object]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(own)},
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]


def _mounts(*models: str, written: bool = False) -> list[Object]:
    found: list[Object] = [
        {"name": "files", "mountPath": commands.FILES, "readOnly": True},
        {"name": "tls", "mountPath": commands.SECRETS, "readOnly": True},
        {"name": "run", "mountPath": commands.RUN},
    ]
    return found + [{"name": name, "mountPath": commands.MODELS, "readOnly": not written} for name in models]


def _volumes(deployed: Deployed, secret: str) -> list[Object]:
    return [
        {"name": "files", "configMap": {"name": deployed.config}},
        {"name": "tls", "secret": {"secretName": secret, "defaultMode": 0o440}},
        {"name": "run", "emptyDir": {"sizeLimit": "64Mi"}},
    ]


def _models(deployed: Deployed, group: Group) -> Object:
    models = deployed.settings.models
    if models.image is not None:
        return {"name": "models", "image": {"reference": models.image, "pullPolicy": "IfNotPresent"}}
    if models.claim is not None:
        return {"name": "models", "persistentVolumeClaim": {"claimName": models.claim, "readOnly": True}}
    sizes = [model.size_bytes for model in group.models]
    known = sum(size for size in sizes if size is not None)
    limit = {"sizeLimit": mebibytes(2 * known + 16 * MIB)} if None not in sizes else {}
    return {"name": "models", "emptyDir": limit}
