"""Command lines of the containers: agent, gateway, relay, tunnel, and the init container that prepares their files."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean_k8s.manifests.deployed_plan import (
    AGENT_PORT,
    CLIENT_PORT,
    HEALTH_PORT,
    METRICS_PORT,
    RELAY_PORT,
    TUNNEL_HEALTH_PORT,
    TUNNEL_METRICS_PORT,
    DeployedPlan,
)
from jellybean_k8s.manifests.pod_settings import NAMESPACE_ENV, NUMBER_ENV, POD_NAME_ENV, REPLY_HOST_ENV
from jellybean_k8s.manifests.settings import MIB
from jellybean_k8s.manifests.worker_groups import WorkerGroup
from jellybean_k8s.names import MAX_LABEL_LENGTH, dns_name

FILES, MODELS, RUN, SECRETS = "/etc/jellybean", "/models", "/run/jellybean", "/etc/jellybean-tls"
SPOOL = "/var/lib/jellybean"
CACHE = "/var/cache/jellybean"
RELAY_OPTION = "--relay="  # of a tunnel
_TLS = f"{RUN}/tls"
_EVERYWHERE, _LOCAL = "[::]", "127.0.0.1"  # of both families: a cluster has either; loopback has IPv4 anyway

Command = tuple[Sequence[str], Sequence[str]]  # command, arguments


def agent(deployed: DeployedPlan, group: WorkerGroup, models_bytes: int) -> Command:
    """Command of an agent, for the worker with the pod's ordinal. `models_bytes`: memory limit of its models."""
    return ("jellybean-agent",), (
        *_common(deployed),
        f"--worker={_worker(group)}",
        f"--root={_root(deployed)}",
        f"--listen={_EVERYWHERE}:{AGENT_PORT}",
        f"--model-memory-mib={max(1, models_bytes // MIB)}",
        f"--metrics-host={_EVERYWHERE}",
        f"--metrics-port={METRICS_PORT}",
        f"--counters={RUN}/counters",
        *(f"--allow-python={function}" for function in deployed.settings.allow_python),
    )


def tunnel(deployed: DeployedPlan, group: WorkerGroup, relay: str) -> Command:
    """Command of the tunnel beside an agent. `relay`: where it dials."""
    return ("python", "-P", "-m", "jellybean_agent.tunnel"), (
        f"{RELAY_OPTION}{relay}",
        f"--plan={FILES}/plan.json",
        f"--worker={_worker(group)}",
        f"--agent={_LOCAL}:{AGENT_PORT}",
        f"--peers={FILES}/tunnel.json",
        f"--bind={_LOCAL}",
        *_piped(deployed, TUNNEL_HEALTH_PORT, TUNNEL_METRICS_PORT),
    )


def relay(deployed: DeployedPlan) -> Command:
    """Command of the relay."""
    return ("python", "-P", "-m", "jellybean_agent.relay"), (
        f"--listen={_EVERYWHERE}:{RELAY_PORT}",
        f"--workers={FILES}/workers.json",
        f"--targets={FILES}/targets.json",
        f"--bind={_EVERYWHERE}",
        *_piped(deployed, HEALTH_PORT, METRICS_PORT),
    )


def _piped(deployed: DeployedPlan, health_port: int, metrics_port: int) -> tuple[str, ...]:
    """Options that tunnel and relay have in common. Relays of other plans, behind the same Service, are not theirs."""
    return (
        f"--deployment={deployed.id}",
        f"--tls={_TLS}",
        f"--health-port={health_port}",
        f"--metrics-host={_EVERYWHERE}",
        f"--metrics-port={metrics_port}",
        f"--drain-s={deployed.settings.drain_s:g}",
    )


def _worker(group: WorkerGroup) -> str:
    """Name of the worker that a pod of a group is, by its ordinal."""
    return group.prefix if group.first is None else f"{group.prefix}$({NUMBER_ENV})"


def gateway(deployed: DeployedPlan) -> Command:
    """Command of the gateway."""
    return ("python", "-P", "-m", "jellybean.serving.gateway_main"), (
        *_common(deployed),
        f"--listen={_EVERYWHERE}:{AGENT_PORT}",
        f"--host={_EVERYWHERE}",
        f"--port={CLIENT_PORT}",
        f"--metrics-host={_EVERYWHERE}",
        f"--metrics-port={METRICS_PORT}",
        *([f"--spool={SPOOL}/spool.db"] if deployed.spools else []),
        *_beside_others(deployed.settings.gateway_replicas),
        *_ledger(deployed),
    )


def _beside_others(replicas: int) -> Sequence[str]:
    """Options of a gateway that is not the only one: agents answer the pod that asked."""
    if replicas == 1:
        return ()
    return (f"--reply-address=$({REPLY_HOST_ENV}):{AGENT_PORT}", f"--gateways={replicas}")


def _ledger(deployed: DeployedPlan) -> Sequence[str]:
    """Options of the ledger. Each pod is a run of its own: time without a gateway is not billed.

    Of several pods, one bills the workers for all: they find each other by their namespace and Deployment.
    """
    settings = deployed.settings
    database = settings.gateway_ledger
    if database is None:
        return ()
    labels = [
        f"--{option}={workflow}={value}" if workflow else f"--{option}={value}"
        for option, values in (("metric", settings.metrics), ("labelled", settings.labelled))
        for workflow, value in values.items()
    ]
    if settings.gateway_replicas > 1:
        labels.append(f"--ledger-deployment=$({NAMESPACE_ENV})/{deployed.gateway}")
    return (f"--ledger={database.url}", f"--live={RUN}/ledger.live", f"--ledger-run=$({POD_NAME_ENV})", *labels)


def _common(deployed: DeployedPlan) -> tuple[str, ...]:
    return (
        f"--plan={FILES}/plan.json",
        f"--peers={FILES}/peers.json",
        f"--links={RUN}/links",
        f"--tls={_TLS}",
        f"--health-port={HEALTH_PORT}",
        f"--drain-s={deployed.settings.drain_s:g}",
    )


def prepare(deployed: DeployedPlan, group: WorkerGroup | None) -> Command:
    """Command of the init container: link the worker's certificate, fetch and verify its models."""
    number = "tls" if group is None else "0" if group.first is None else f"$({NUMBER_ENV})"
    arguments = [f"--tls-from={SECRETS}", f"--tls-name={number}", f"--tls-to={_TLS}"]
    if group is not None:
        url, cache = deployed.settings.models.url, deployed.settings.models.cache
        arguments += [f"--root={_root(deployed)}", *([f"--url={url}"] if url else [])]
        if cache is not None:
            arguments += [f"--cache={CACHE}", f"--cache-bytes={round(cache.size_bytes)}"]
        arguments += [f"{file.sha256}:{file.path}" for model in group.models for file in model.all_files]
    return ("python", "-P", f"{FILES}/prepare.py"), arguments


def tls_secret(deployed: DeployedPlan, group: WorkerGroup | None) -> str:
    """Name of the Secret with the certificates of a pool's workers in one site, or of the gateway; shared by all plans.

    Its keys: `ca.crt`, and `NUMBER.crt`, `NUMBER.key` for each worker (`tls.crt`, `tls.key` for the gateway).
    """
    if group is None:
        return gateway_secret(deployed.app)
    own = group.prefix if group.first is None else f"{group.pool}{f'.{group.site}' if group.site else ''}"
    return f"{deployed.app}-tls-{dns_name(own, MAX_LABEL_LENGTH - len(deployed.app) - 5)}"


def gateway_secret(app: str) -> str:
    """Name of the Secret with the certificate of a deployment's gateway."""
    return f"{app}-gateway-tls"


def relay_secret(app: str) -> str:
    """Name of the Secret with the certificate of a deployment's relay."""
    return f"{app}-relay-tls"


def admin_secret(app: str) -> str:
    """Name of the Secret with the certificate of a deployment's admin, where the operator issues certificates."""
    return f"{app}-admin-tls"


def _root(deployed: DeployedPlan) -> str:
    folder = deployed.settings.models.folder.strip("/")
    return f"{MODELS}/{folder}" if folder else MODELS
