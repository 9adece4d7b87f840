"""Who may connect to whom: agents, gateway and relay of one plan with each other, clients, scrapers, other clusters."""

from __future__ import annotations

from collections.abc import Iterator

from jellybean_k8s.manifests.deployed_plan import (
    AGENT_PORT,
    CLIENT_PORT,
    METRICS_PORT,
    RELAY_PORT,
    REMOTE_PORT,
    TUNNEL_METRICS_PORT,
    DeployedPlan,
)
from jellybean_k8s.manifests.labels import labels, selector
from jellybean_k8s.names import APP_PREFIX, FIELD_MANAGER, OWN_PREFIX
from jellybean_k8s.objects import KubeObject, kube_object

Rules = tuple[list[KubeObject], list[KubeObject]]  # ingress, egress


def network_policies(deployed: DeployedPlan) -> Iterator[KubeObject]:
    """Agents accept agents and gateway, the gateway clients, both scrapers; both call each other and DNS.

    A relay accepts tunnels from anywhere, and both of them, whom it calls. Agents with a tunnel call its relay.
    """
    policies = {"agent": (deployed.agents, _agent(deployed))} if deployed.groups else {}
    if deployed.has_gateway:
        policies["gateway"] = (deployed.gateway, _gateway(deployed))
    if deployed.has_relay:
        policies["relay"] = (deployed.relay, _relay(deployed))
    for component, (name, (ingress, egress)) in policies.items():
        spec = {
            "podSelector": {"matchLabels": selector(deployed, component)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        }
        yield kube_object("networking.k8s.io/v1", "NetworkPolicy", name, labels(deployed, component), spec=spec)


def _agent(deployed: DeployedPlan) -> Rules:
    settings = deployed.settings
    to_models = [_anywhere(port) for port in settings.models.ports]
    scraped = [METRICS_PORT, TUNNEL_METRICS_PORT] if deployed.has_tunnels else [METRICS_PORT]
    to_relay = [_anywhere(settings.relay.port)] if deployed.has_tunnels and settings.relay is not None else []
    ingress = [_from_own(deployed, _tcp(AGENT_PORT)), _anywhere(*scraped)]
    return ingress, [_to_own(deployed), _DNS, *to_models, *_to_collector(deployed), *to_relay]


def _gateway(deployed: DeployedPlan) -> Rules:
    database = deployed.settings.gateway_ledger
    to_database = [] if database is None else [_anywhere(database.port)]
    ingress = [_from_own(deployed, _tcp(AGENT_PORT)), _anywhere(CLIENT_PORT), _anywhere(METRICS_PORT)]
    return ingress, [_to_own(deployed), _DNS, *to_database, *_to_collector(deployed)]


def _relay(deployed: DeployedPlan) -> Rules:
    ingress = [_from_own(deployed, _remote_workers(deployed)), _anywhere(RELAY_PORT), _anywhere(METRICS_PORT)]
    return ingress, [{"to": [_own(deployed)], "ports": [_tcp(AGENT_PORT)]}, _DNS]


_DNS: KubeObject = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}


def _to_collector(deployed: DeployedPlan) -> list[KubeObject]:
    traces = deployed.settings.traces
    return [] if traces is None else [_anywhere(traces.port)]


def _from_own(deployed: DeployedPlan, port: KubeObject) -> KubeObject:
    return {"from": [_own(deployed)], "ports": [port]}


def _to_own(deployed: DeployedPlan) -> KubeObject:
    """To the pods of this plan: to agents and gateway, and to the relay's ports of workers in other clusters."""
    through_relay = [_remote_workers(deployed)] if deployed.has_relay else []
    return {"to": [_own(deployed)], "ports": [_tcp(AGENT_PORT), *through_relay]}


def _remote_workers(deployed: DeployedPlan) -> KubeObject:
    return {**_tcp(REMOTE_PORT), "endPort": max(deployed.remote_peers)}


def _own(deployed: DeployedPlan) -> KubeObject:
    wanted = {
        f"{APP_PREFIX}/instance": deployed.app,
        f"{OWN_PREFIX}/plan": deployed.id,
        f"{APP_PREFIX}/managed-by": FIELD_MANAGER,
    }
    return {"podSelector": {"matchLabels": wanted}}


def _anywhere(*ports: int) -> KubeObject:
    return {"ports": [_tcp(port) for port in ports]}


def _tcp(port: int) -> KubeObject:
    return {"protocol": "TCP", "port": port}
