"""Pod templates: scheduling, security context, probes, graceful termination."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jellybean_k8s.manifests import commands
from jellybean_k8s.manifests.deployed_plan import (
    AGENT_PORT,
    CLIENT_PORT,
    HEALTH_PORT,
    LIVENESS_SERVICE,
    METRICS_PORT,
    DeployedPlan,
)
from jellybean_k8s.manifests.devices import agent_image, gpu_resource, gpu_taints
from jellybean_k8s.manifests.pod_layers import PodLayers, with_pod_settings
from jellybean_k8s.manifests.pod_settings import (
    AUTHORIZATION_ENV,
    NAMESPACE_ENV,
    NUMBER_ENV,
    PASSWORD_ENV,
    POD_NAME_ENV,
    REPLY_HOST_ENV,
)
from jellybean_k8s.manifests.quantities import cores, mebibytes
from jellybean_k8s.manifests.settings import MIB, LedgerDatabase, ModelCache
from jellybean_k8s.manifests.traces import with_trace_env
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER, OWN_PREFIX, label_value
from jellybean_k8s.objects import KubeObject

AGENT_BASE_BYTES = 256 * MIB  # memory of an agent without models: Python, gRPC, ONNX Runtime
USER = 65532  # the conventional nonroot user
STOP_S = 10  # seconds from the end of a drain to SIGKILL
_EVERY_S = 5  # period of the readiness probe, in seconds
_LIVENESS_EVERY_S, _LIVENESS_MISSES = 10, 6  # a worker in a long run may answer late; a dead one is found in a minute
_STARTING_EVERY_S = 2
SPOOL_VOLUME = "spool"
_SPREAD = "topologySpreadConstraints"
_LOCAL_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
_SCRAPED = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS_PORT), "prometheus.io/path": "/metrics"}


def labels(deployed: DeployedPlan, component: str, group: WorkerGroup | None = None) -> dict[str, str]:
    """Recommended Kubernetes labels and our own, for an object of this plan."""
    found = {
        f"{APP_PREFIX}/name": "jellybean",
        f"{APP_PREFIX}/instance": deployed.app,
        f"{APP_PREFIX}/component": component,
        f"{APP_PREFIX}/part-of": label_value(deployed.plan.name),
        f"{APP_PREFIX}/managed-by": FIELD_MANAGER,
        f"{APP_PREFIX}/version": label_value(deployed.settings.version),
        f"{OWN_PREFIX}/plan": deployed.id,
    }
    if group is not None:
        found |= {f"{OWN_PREFIX}/set": deployed.set_name(group), f"{OWN_PREFIX}/pool": label_value(group.pool)}
        found |= {f"{OWN_PREFIX}/tier": label_value(group.tier)}
        if group.site is not None:
            found[f"{OWN_PREFIX}/site"] = label_value(group.site)
    return found


def selector(deployed: DeployedPlan, component: str, group: WorkerGroup | None = None) -> dict[str, str]:
    """The minimal, immutable labels that select these pods."""
    found = {
        f"{APP_PREFIX}/instance": deployed.app,
        f"{APP_PREFIX}/component": component,
        f"{OWN_PREFIX}/plan": deployed.id,
    }
    return found | ({f"{OWN_PREFIX}/set": deployed.set_name(group)} if group is not None else {})


def agent_template(deployed: DeployedPlan, group: WorkerGroup) -> KubeObject:
    """Template of the pods of a group; each pod is the worker of the plan with its ordinal."""
    settings = deployed.settings
    pool = settings.of_pool(group.pool)
    needs = math.ceil(pool.memory_bytes or group.needs_bytes + AGENT_BASE_BYTES)
    most = max(needs, math.ceil(group.memory_bytes or 1.5 * needs))
    resources = _resources(pool.cpu, needs, most)
    gpu = gpu_resource(settings, group)
    if gpu is not None:
        resources["limits"][gpu] = str(pool.gpus)  # a GPU's request is its limit
    image = agent_image(settings, group)
    ports = {"agent": AGENT_PORT, "health": HEALTH_PORT, "metrics": METRICS_PORT}
    agent = _container("agent", image, commands.agent(deployed, group, most - AGENT_BASE_BYTES), ports, resources)
    agent |= {
        "env": with_trace_env(_worker_number_env(group), settings.traces),
        "volumeMounts": _mounts("models"),
        **_probes(settings.start_s, loads=True),
    }
    agent["lifecycle"] = _pre_stop(settings.pre_stop_s)
    prepare = _prepare(image, commands.prepare(deployed, group))
    prepare |= {"env": [*_worker_number_env(group), *_authorization(deployed)]}
    prepare["volumeMounts"] = _mounts("models", written=settings.models.url is not None)
    if (cache := settings.models.cache) is not None:
        prepare["volumeMounts"].append({"name": "cache", "mountPath": commands.CACHE})
    spec = _pod(deployed, [prepare], [agent], group.tier)
    spec["affinity"] = _affinity(deployed, group.tier, group)
    spec["tolerations"] = [
        *_tolerations(deployed, group.tier),
        *(_tolerate_any(taint) for taint in gpu_taints(settings, group)),
    ]
    spec[_SPREAD] = _spread(selector(deployed, "agent", group))
    spec["volumes"] = [*_volumes(deployed, commands.tls_secret(deployed, group)), _models(deployed, group)]
    if cache is not None:
        spec["volumes"].append(_cache(cache))
    layers = (("pods", settings.pods), (f"pools.{group.pool}", pool.pods))
    return _template(deployed, labels(deployed, "agent", group), spec, layers)


def gateway_template(deployed: DeployedPlan) -> KubeObject:
    """Template of the gateways' pods."""
    settings, tier = deployed.settings, deployed.gateway_tier
    memory = math.ceil(settings.gateway_memory_bytes)
    ports = {"grpc": CLIENT_PORT, "agents": AGENT_PORT, "health": HEALTH_PORT, "metrics": METRICS_PORT}
    resources = _resources(settings.gateway_cpu, memory, memory)
    gateway = _container("gateway", settings.gateway_image, commands.gateway(deployed), ports, resources)
    gateway |= {"volumeMounts": _mounts(), **_probes(settings.start_s, loads=False)}
    ledger = _ledger_env(settings.gateway_ledger, settings.gateway_replicas)
    if env := with_trace_env([*_reply_host_env(settings.gateway_replicas), *ledger], settings.traces):
        gateway["env"] = env
    gateway["lifecycle"] = _pre_stop(settings.pre_stop_s)
    prepare = _prepare(settings.gateway_image, commands.prepare(deployed, None)) | {"volumeMounts": _mounts()}
    spec = _pod(deployed, [prepare], [gateway], tier)
    spec["affinity"] = _affinity(deployed, tier, None)
    spec["tolerations"] = _tolerations(deployed, tier)
    spec[_SPREAD] = _spread(selector(deployed, "gateway"))
    spec["volumes"] = _volumes(deployed, commands.tls_secret(deployed, None))
    if deployed.spools:
        gateway["volumeMounts"].append({"name": SPOOL_VOLUME, "mountPath": commands.SPOOL})
        claim = {"claimName": settings.gateway_spool, "readOnly": False}
        spec["volumes"].append({"name": SPOOL_VOLUME, "persistentVolumeClaim": claim})
    layers = (("pods", settings.pods), ("gateway", settings.gateway_pods))
    return _template(deployed, labels(deployed, "gateway"), spec, layers)


def _template(deployed: DeployedPlan, own: Mapping[str, str], spec: KubeObject, layers: PodLayers) -> KubeObject:
    annotations = {f"{OWN_PREFIX}/config": deployed.config, f"{OWN_PREFIX}/plan-hash": str(deployed.document["hash"])}
    annotations[_LOCAL_VOLUMES] = ",".join(volume["name"] for volume in spec["volumes"] if "emptyDir" in volume)
    if not deployed.service_monitor:
        annotations |= _SCRAPED
    template = {"metadata": {"labels": dict(own), "annotations": annotations}, "spec": spec}
    return with_pod_settings(template, layers)


def _pod(deployed: DeployedPlan, init: Sequence[KubeObject], containers: Sequence[KubeObject], tier: str) -> KubeObject:
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


def _container(
    name: str, image: str, command: tuple[Sequence[str], Sequence[str]], ports: Mapping[str, int], resources: KubeObject
) -> KubeObject:
    found: KubeObject = {"name": name, "image": image, "command": list(command[0]), "args": list(command[1])}
    if ports:
        found["ports"] = [{"name": key, "containerPort": port, "protocol": "TCP"} for key, port in ports.items()]
    found["resources"] = resources
    found["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    return found


def _prepare(image: str, command: tuple[Sequence[str], Sequence[str]]) -> KubeObject:
    """The init container. It has the pod's own image, so that a node pulls no second one."""
    return _container("prepare", image, command, {}, _resources(0.1, 64 * MIB, 256 * MIB))


def _ledger_env(database: LedgerDatabase | None, replicas: int) -> list[KubeObject]:
    if database is None:
        return []
    found = [_field_env(POD_NAME_ENV, "metadata.name")]
    if replicas > 1:
        found.append(_field_env(NAMESPACE_ENV, "metadata.namespace"))
    if database.secret is not None:
        password = {"secretKeyRef": {"name": database.secret, "key": "password"}}
        found.append({"name": PASSWORD_ENV, "valueFrom": password})
    return found


def _field_env(name: str, path: str) -> KubeObject:
    """Environment variable with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _reply_host_env(replicas: int) -> list[KubeObject]:
    """Environment variable with the address of a gateway's pod: the pods of a Deployment have no names of their own."""
    return [] if replicas == 1 else [_field_env(REPLY_HOST_ENV, "status.podIP")]


def _worker_number_env(group: WorkerGroup) -> list[KubeObject]:
    """Environment variable with the pod's ordinal; empty for a worker without a number."""
    if group.first is None:
        return []
    label = "metadata.labels['apps.kubernetes.io/pod-index']"
    return [_field_env(NUMBER_ENV, label)]


def _authorization(deployed: DeployedPlan) -> list[KubeObject]:
    name = deployed.settings.models.secret
    if name is None:
        return []
    return [{"name": AUTHORIZATION_ENV, "valueFrom": {"secretKeyRef": {"name": name, "key": "authorization"}}}]


def _resources(cpu: float, request_bytes: int, limit_bytes: int) -> KubeObject:
    """Resource requests and limits of a container. No CPU limit unless `cpu_limit` is set: throttling adds latency."""
    return {
        "requests": {"cpu": cores(cpu), "memory": mebibytes(request_bytes)},
        "limits": {"memory": mebibytes(limit_bytes)},
    }


def _probe(how: KubeObject, every_s: int, misses: int) -> KubeObject:
    return {**how, "periodSeconds": every_s, "timeoutSeconds": min(every_s, 5), "failureThreshold": misses}


def _probes(start_s: float, *, loads: bool) -> KubeObject:
    """Startup, readiness and liveness probes. Liveness only tests that the process answers: a pod may be unready
    because of another pod, which no restart would fix.
    """
    ready, live = ({"grpc": {"port": HEALTH_PORT, "service": name}} for name in ("", LIVENESS_SERVICE))
    return {
        "startupProbe": _probe(
            ready if loads else live, _STARTING_EVERY_S, max(1, math.ceil(start_s / _STARTING_EVERY_S))
        ),
        "readinessProbe": _probe(ready, _EVERY_S, 2),
        "livenessProbe": _probe(live, _LIVENESS_EVERY_S, _LIVENESS_MISSES),
    }


def _pre_stop(seconds: int) -> KubeObject:
    """Delay during which endpoints are updated, before the process refuses new requests."""
    return {"preStop": {"sleep": {"seconds": seconds}}}


def _affinity(deployed: DeployedPlan, tier: str, group: WorkerGroup | None) -> KubeObject:
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


def _tolerate_any(key: str) -> KubeObject:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def _tolerations(deployed: DeployedPlan, tier: str) -> list[KubeObject]:
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


def _spread(own: Mapping[str, str]) -> list[KubeObject]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(own)},
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]


def _mounts(*models: str, written: bool = False) -> list[KubeObject]:
    found: list[KubeObject] = [
        {"name": "files", "mountPath": commands.FILES, "readOnly": True},
        {"name": "tls", "mountPath": commands.SECRETS, "readOnly": True},
        {"name": "run", "mountPath": commands.RUN},
    ]
    return found + [{"name": name, "mountPath": commands.MODELS, "readOnly": not written} for name in models]


def _volumes(deployed: DeployedPlan, secret: str) -> list[KubeObject]:
    return [
        {"name": "files", "configMap": {"name": deployed.config}},
        {"name": "tls", "secret": {"secretName": secret, "defaultMode": 0o440}},
        {"name": "run", "emptyDir": {"sizeLimit": "64Mi"}},
    ]


def _cache(cache: ModelCache) -> KubeObject:
    if cache.host_path is not None:
        return {"name": "cache", "hostPath": {"path": cache.host_path, "type": "DirectoryOrCreate"}}
    return {"name": "cache", "persistentVolumeClaim": {"claimName": cache.claim}}


def _models(deployed: DeployedPlan, group: WorkerGroup) -> KubeObject:
    models = deployed.settings.models
    if models.image is not None:
        return {"name": "models", "image": {"reference": models.image, "pullPolicy": "IfNotPresent"}}
    if models.claim is not None:
        return {"name": "models", "persistentVolumeClaim": {"claimName": models.claim, "readOnly": True}}
    sizes = [model.size_bytes for model in group.models]
    known = sum(size for size in sizes if size is not None)
    limit = {"sizeLimit": mebibytes(2 * known + 16 * MIB)} if None not in sizes else {}
    return {"name": "models", "emptyDir": limit}
