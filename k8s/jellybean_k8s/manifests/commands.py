"""What runs in the containers: the command lines of agent, gateway and the step before them."""

from __future__ import annotations

from collections.abc import Sequence

from jellybean_k8s.manifests.served import AGENT_PORT, CLIENT_PORT, HEALTH_PORT, METRICS_PORT, Deployed
from jellybean_k8s.manifests.settings import MIB
from jellybean_k8s.manifests.workers import Group
from jellybean_k8s.names import MOST_LABEL, dns_name

FILES, MODELS, RUN, SECRETS = "/etc/jellybean", "/models", "/run/jellybean", "/etc/jellybean-tls"
SPOOL = "/var/lib/jellybean"
NUMBER = "WORKER_NUMBER"  # environment variable: the pod's ordinal
_TLS = f"{RUN}/tls"
_EVERYWHERE = "0.0.0.0"

Command = tuple[Sequence[str], Sequence[str]]  # command, arguments


def agent(deployed: Deployed, group: Group, models_bytes: int) -> Command:
    """Of an agent: the worker with the pod's number. `models_bytes`: what its models may take of the pod's memory."""
    own = group.prefix if group.first is None else f"{group.prefix}$({NUMBER})"
    return ("jellybean-agent",), (
        *_common(deployed),
        f"--worker={own}",
        f"--root={_root(deployed)}",
        f"--listen={_EVERYWHERE}:{AGENT_PORT}",
        f"--model-memory-mib={max(1, models_bytes // MIB)}",
        f"--metrics-host={_EVERYWHERE}",
        f"--metrics-port={METRICS_PORT}",
        *(f"--allow-python={function}" for function in deployed.settings.allow_python),
    )


def gateway(deployed: Deployed) -> Command:
    """Of the gateway."""
    return ("python", "-P", "-m", "jellybean.serving.gateway_main"), (
        *_common(deployed),
        f"--listen={_EVERYWHERE}:{AGENT_PORT}",
        f"--host={_EVERYWHERE}",
        f"--port={CLIENT_PORT}",
        *([f"--spool={SPOOL}/spool.db"] if deployed.spools else []),
    )


def _common(deployed: Deployed) -> tuple[str, ...]:
    return (
        f"--plan={FILES}/plan.json",
        f"--peers={FILES}/peers.json",
        f"--links={RUN}/links",
        f"--tls={_TLS}",
        f"--health-port={HEALTH_PORT}",
        f"--drain-s={deployed.settings.drain_s:g}",
    )


def prepare(deployed: Deployed, group: Group | None) -> Command:
    """Of the init container: put the worker's certificate where it is looked for; bring and verify its models."""
    number = "tls" if group is None else "0" if group.first is None else f"$({NUMBER})"
    arguments = [f"--tls-from={SECRETS}", f"--tls-name={number}", f"--tls-to={_TLS}"]
    if group is not None:
        url = deployed.settings.models.url
        arguments += [f"--root={_root(deployed)}", *([f"--url={url}"] if url else [])]
        arguments += [f"{model.sha256}:{model.path}" for model in group.models]
    return ("python", "-P", f"{FILES}/prepare.py"), arguments


def tls_secret(deployed: Deployed, group: Group | None) -> str:
    """The Secret with the certificates of a pool's workers in one site, or of the gateway: made once, for all plans.

    Its keys: `ca.crt`, and `NUMBER.crt`, `NUMBER.key` for each worker (`tls.crt`, `tls.key` for the gateway).
    """
    if group is None:
        return f"{deployed.app}-gateway-tls"
    own = group.prefix if group.first is None else f"{group.pool}{f'.{group.site}' if group.site else ''}"
    return f"{deployed.app}-tls-{dns_name(own, MOST_LABEL - len(deployed.app) - 5)}"


def _root(deployed: Deployed) -> str:
    folder = deployed.settings.models.folder.strip("/")
    return f"{MODELS}/{folder}" if folder else MODELS
