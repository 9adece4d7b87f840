"""Pod templates of agents and gateway."""

from __future__ import annotations

import math

from jellybean_k8s.manifests.deployed_plan import AGENT_PORT, CLIENT_PORT, HEALTH_PORT, METRICS_PORT, DeployedPlan
from jellybean_k8s.manifests.devices import agent_image, gpu_resource, gpu_taints
from jellybean_k8s.manifests.labels import labels, selector
from jellybean_k8s.manifests.pod_settings import (
    AUTHORIZATION_ENV,
    NAMESPACE_ENV,
    PASSWORD_ENV,
    POD_NAME_ENV,
    REPLY_HOST_ENV,
)
from jellybean_k8s.manifests.pods import commands
from jellybean_k8s.manifests.pods.parts import (
    affinity,
    container,
    container_resources,
    field_env,
    mounts,
    pod_spec,
    pod_template,
    pre_stop,
    prepare_container,
    probes,
    spread,
    tolerate_any,
    tolerations,
    volumes,
    worker_number_env,
)
from jellybean_k8s.manifests.pods.tunnel import tunnel_container
from jellybean_k8s.manifests.quantities import mebibytes
from jellybean_k8s.manifests.settings import MIB, LedgerDatabase, ModelCache
from jellybean_k8s.manifests.traces import with_trace_env
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_k8s.objects import KubeObject

AGENT_BASE_BYTES = 256 * MIB  # memory of an agent without models: Python, gRPC, ONNX Runtime
AGENT = "agent"  # name of the container
SPOOL_VOLUME = "spool"
_SPREAD = "topologySpreadConstraints"


def agent_template(deployed: DeployedPlan, group: WorkerGroup) -> KubeObject:
    """Template of the pods of a group; each pod is the worker of the plan with its ordinal."""
    settings = deployed.settings
    pool = settings.of_pool(group.pool)
    needs = math.ceil(pool.memory_bytes or group.needs_bytes + AGENT_BASE_BYTES)
    most = max(needs, math.ceil(group.memory_bytes or 1.5 * needs))
    needed = container_resources(pool.cpu, needs, most)
    gpu = gpu_resource(settings, group)
    if gpu is not None:
        needed["limits"][gpu] = str(pool.gpus)  # a GPU's request is its limit
    image = agent_image(settings, group)
    ports = {"agent": AGENT_PORT, "health": HEALTH_PORT, "metrics": METRICS_PORT}
    agent = container(AGENT, image, commands.agent(deployed, group, most - AGENT_BASE_BYTES), ports, needed)
    agent |= {
        "env": with_trace_env(worker_number_env(group), settings.traces),
        "volumeMounts": mounts("models"),
        **probes(settings.start_s, loads=True),
    }
    agent["lifecycle"] = pre_stop(settings.pre_stop_s)
    prepare = prepare_container(image, commands.prepare(deployed, group))
    prepare |= {"env": [*worker_number_env(group), *_authorization(deployed)]}
    prepare["volumeMounts"] = mounts("models", written=settings.models.url is not None)
    if (cache := settings.models.cache) is not None:
        prepare["volumeMounts"].append({"name": "cache", "mountPath": commands.CACHE})
    tunnel = [tunnel_container(deployed, group, image)] if deployed.has_tunnels else []
    spec = pod_spec(deployed, [prepare, *tunnel], [agent], group.tier)
    spec["affinity"] = affinity(deployed, group.tier, group)
    spec["tolerations"] = [
        *tolerations(deployed, group.tier),
        *(tolerate_any(taint) for taint in gpu_taints(settings, group)),
    ]
    spec[_SPREAD] = spread(selector(deployed, "agent", group))
    spec["volumes"] = [*volumes(deployed, commands.tls_secret(deployed, group)), _models(deployed, group)]
    if cache is not None:
        spec["volumes"].append(_cache(cache))
    layers = (("pods", settings.pods), (f"pools.{group.pool}", pool.pods))
    return pod_template(deployed, labels(deployed, "agent", group), spec, layers)


def gateway_template(deployed: DeployedPlan) -> KubeObject:
    """Template of the gateways' pods."""
    settings, tier = deployed.settings, deployed.gateway_tier
    memory = math.ceil(settings.gateway_memory_bytes)
    ports = {"grpc": CLIENT_PORT, "agents": AGENT_PORT, "health": HEALTH_PORT, "metrics": METRICS_PORT}
    needed = container_resources(settings.gateway_cpu, memory, memory)
    gateway = container("gateway", settings.gateway_image, commands.gateway(deployed), ports, needed)
    gateway |= {"volumeMounts": mounts(), **probes(settings.start_s, loads=False)}
    ledger = _ledger_env(settings.gateway_ledger, settings.gateway_replicas)
    if env := with_trace_env([*_reply_host_env(settings.gateway_replicas), *ledger], settings.traces):
        gateway["env"] = env
    gateway["lifecycle"] = pre_stop(settings.pre_stop_s)
    prepare = prepare_container(settings.gateway_image, commands.prepare(deployed, None)) | {"volumeMounts": mounts()}
    spec = pod_spec(deployed, [prepare], [gateway], tier)
    spec["affinity"] = affinity(deployed, tier, None)
    spec["tolerations"] = tolerations(deployed, tier)
    spec[_SPREAD] = spread(selector(deployed, "gateway"))
    spec["volumes"] = volumes(deployed, commands.tls_secret(deployed, None))
    if deployed.spools:
        gateway["volumeMounts"].append({"name": SPOOL_VOLUME, "mountPath": commands.SPOOL})
        claim = {"claimName": settings.gateway_spool, "readOnly": False}
        spec["volumes"].append({"name": SPOOL_VOLUME, "persistentVolumeClaim": claim})
    layers = (("pods", settings.pods), ("gateway", settings.gateway_pods))
    return pod_template(deployed, labels(deployed, "gateway"), spec, layers)


def _ledger_env(database: LedgerDatabase | None, replicas: int) -> list[KubeObject]:
    if database is None:
        return []
    found = [field_env(POD_NAME_ENV, "metadata.name")]
    if replicas > 1:
        found.append(field_env(NAMESPACE_ENV, "metadata.namespace"))
    if database.secret is not None:
        password = {"secretKeyRef": {"name": database.secret, "key": "password"}}
        found.append({"name": PASSWORD_ENV, "valueFrom": password})
    return found


def _reply_host_env(replicas: int) -> list[KubeObject]:
    """Environment variable with the address of a gateway's pod: the pods of a Deployment have no names of their own."""
    return [] if replicas == 1 else [field_env(REPLY_HOST_ENV, "status.podIP")]


def _authorization(deployed: DeployedPlan) -> list[KubeObject]:
    name = deployed.settings.models.secret
    if name is None:
        return []
    return [{"name": AUTHORIZATION_ENV, "valueFrom": {"secretKeyRef": {"name": name, "key": "authorization"}}}]


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
