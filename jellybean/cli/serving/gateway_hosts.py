"""The host names and addresses in the certificate of a gateway, those of its Service in Kubernetes among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jellybean.cli.console import say
from jellybean.cli.kubernetes.options import connect_to
from jellybean.documents import AnyProject, Project
from jellybean_protos.addresses import plain_host

_HERE = ("localhost", "127.0.0.1", "::1")


def gateway_hosts(project: AnyProject, before: Sequence[str], given: Sequence[str], namespace: str) -> tuple[str, ...]:
    """The hosts of a new certificate of the gateway.

    `before`: those of the certificate that it replaces, which stay unless others are `given`; names of the Service
    stay unless both others and a `namespace` are given.
    """
    stated = map(plain_host, given or before)
    return tuple(dict.fromkeys((*_HERE, *stated, *_service_hosts(project, before, given, namespace))))


def context_namespace(kubeconfig: Path | None, context: str | None, namespace: str | None) -> str:
    """The namespace that the options of a cluster name; empty without any. DeployError for an unknown context."""
    if namespace is not None or (kubeconfig is None and context is None):
        return namespace or ""
    return connect_to(kubeconfig, context, None).namespace


def deployment_name_of(project: AnyProject) -> str:
    """The name of a project's deployment and of its Service. DocumentError without a kubernetes.yaml."""
    from jellybean.documents.kubernetes import load_settings
    from jellybean_k8s import app_name

    name = project.workflow.name if isinstance(project, Project) else project.name
    return app_name(load_settings(project.directory), name)


def _service_hosts(project: AnyProject, before: Sequence[str], given: Sequence[str], namespace: str) -> list[str]:
    from jellybean.documents.kubernetes import KUBERNETES_FILE
    from jellybean_k8s import service_names, service_namespaces

    if not namespace and not (project.directory / KUBERNETES_FILE).exists():
        return []
    app = deployment_name_of(project)
    kept = () if given and namespace else service_namespaces(app, before)
    namespaces = tuple(dict.fromkeys((*kept, *filter(None, (namespace,)))))
    if not namespaces:
        say(
            f"the gateway's certificate has the name {app} of its Service in Kubernetes; for clients in other "
            f"namespaces give --namespace: adds {', '.join(service_names(app, 'NAMESPACE')[1:])}"
        )
    return [host for one in namespaces or ("",) for host in service_names(app, one)]
