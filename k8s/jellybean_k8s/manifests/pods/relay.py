"""The relay in the gateway's cluster, which the tunnels of other clusters dial: its Deployment and two Services.

Each plan has a relay, so that a new plan's is ready beside the running one's. Tunnels know one address for all plans;
its Service selects the relays of all of them, and a tunnel dials until its own answers (docs/adr/0026).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from jellybean_k8s.errors import DeployError
from jellybean_k8s.manifests.clusters import RelaySettings
from jellybean_k8s.manifests.deployed_plan import HEALTH_PORT, METRICS_PORT, RELAY_PORT, DeployedPlan
from jellybean_k8s.manifests.labels import labels, plan_independent_labels, selector
from jellybean_k8s.manifests.pods import commands
from jellybean_k8s.manifests.pods.parts import (
    affinity,
    container,
    container_resources,
    grace_s,
    mounts,
    pod_spec,
    pod_template,
    pre_stop,
    prepare_container,
    probes,
    spread,
    tolerations,
    volumes,
)
from jellybean_k8s.names import APP_PREFIX
from jellybean_k8s.objects import CLIENT_FAMILIES, KubeObject, kube_object, service_port

RELAY = "relay"


def relay_deployment(deployed: DeployedPlan) -> KubeObject:
    """The Deployment of the relay. A single pod: gateway and agents find a worker where its tunnel has dialled."""
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(deployed, RELAY)},
        "template": _template(deployed, _settings(deployed)),
    }
    return kube_object("apps/v1", "Deployment", deployed.relay, labels(deployed, RELAY), spec=spec)


def relay_services(deployed: DeployedPlan) -> Iterator[KubeObject]:
    """The Service for gateway and agents beside the relay, and the one for tunnels, which outlives the plan."""
    settings = _settings(deployed)
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(deployed, RELAY),
        "ports": [service_port("metrics", METRICS_PORT)],  # those of workers are not named: clients know them
    }
    yield kube_object("v1", "Service", deployed.relay, labels(deployed, RELAY), spec=spec)
    port = {**service_port("tunnels", settings.port), "targetPort": RELAY_PORT}
    if settings.service.type == "NodePort":
        port["nodePort"] = settings.port
    every = {f"{APP_PREFIX}/instance": deployed.app, f"{APP_PREFIX}/component": RELAY}
    front = {
        "type": settings.service.type,
        "ipFamilyPolicy": CLIENT_FAMILIES,
        "selector": every,
        "ports": [port],
    }
    service = kube_object("v1", "Service", deployed.relay_front, plan_independent_labels(deployed, RELAY), spec=front)
    if settings.service.annotations:
        service["metadata"]["annotations"] = dict(settings.service.annotations)
    yield service


def _settings(deployed: DeployedPlan) -> RelaySettings:
    if deployed.settings.relay is None:
        raise DeployError("a relay without settings: a fault of JellyBean")
    return deployed.settings.relay


def _template(deployed: DeployedPlan, settings: RelaySettings) -> KubeObject:
    """Template of the relay's pod. It leaves after the gateway that its pipes lead to: it waits for a drain first."""
    general, tier = deployed.settings, deployed.gateway_tier
    memory = math.ceil(settings.memory_bytes)
    ports = {"tunnels": RELAY_PORT, "health": HEALTH_PORT, "metrics": METRICS_PORT}
    needed = container_resources(settings.cpu, memory, memory)
    relay = container(RELAY, general.gateway_image, commands.relay(deployed), ports, needed)
    relay |= {"volumeMounts": mounts(), **probes(general.start_s, loads=False)}
    stay_s = general.pre_stop_s + math.ceil(general.drain_s)
    relay["lifecycle"] = pre_stop(stay_s)
    prepare = prepare_container(general.gateway_image, commands.prepare(deployed, None)) | {"volumeMounts": mounts()}
    spec = pod_spec(deployed, [prepare], [relay], tier)
    spec["terminationGracePeriodSeconds"] = grace_s(general.drain_s, stay_s)
    spec["affinity"] = affinity(deployed, tier, None)
    spec["tolerations"] = tolerations(deployed, tier)
    spec["topologySpreadConstraints"] = spread(selector(deployed, RELAY))
    spec["volumes"] = volumes(deployed, commands.relay_secret(deployed.app))
    layers = (("pods", general.pods), ("relay", settings.pods))
    return pod_template(deployed, labels(deployed, RELAY), spec, layers)
