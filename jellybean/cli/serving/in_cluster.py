"""The gateway of a project's deployment in Kubernetes, as an endpoint for commands."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from jellybean.cli.kubernetes.options import connect_to
from jellybean.documents import Project, load_any_project, require_folder
from jellybean.documents.layout import document_files, holds_several_workflows
from jellybean.errors import InputError
from jellybean.serving.endpoint import Endpoint, admin_certificate, remote_endpoint
from jellybean.serving.errors import CertificateError
from jellybean_agent import CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE, CertificateFolder, write_private_file
from jellybean_k8s import Cluster, admin_secret, app_name, deployment_name, forwarded_gateway


@contextmanager
def deployed_endpoint(
    directory: Path, tls: Path | None, kubeconfig: Path | None, context: str | None, namespace: str | None
) -> Iterator[Endpoint]:
    """The gateway of the deployment that DIR names, over a port that is forwarded as long as the context is open.

    The deployment is that of DIR's documents; without any, that of the workflow in the admin's certificate. The
    certificate is `tls`, else DIR's, else the one that the operator keeps in a Secret of the deployment.
    """
    require_folder(directory)
    cluster = connect_to(kubeconfig, context, namespace)
    with _certificate(directory, tls, cluster) as folder:
        endpoint = remote_endpoint(directory, "127.0.0.1:1", folder)  # told before the cluster is asked
        app = _deployment(directory) or deployment_name(CertificateFolder(folder).current().identity.workflow)
        with forwarded_gateway(cluster, app) as address:
            yield replace(endpoint, address=address)


def _deployment(directory: Path) -> str:
    """The name of the deployment that a project's documents name; empty if there are none."""
    from jellybean.documents.kubernetes import KUBERNETES_FILE, load_settings

    if not document_files(directory)["workflow"].exists() and not holds_several_workflows(directory):
        return ""
    project = load_any_project(directory, profiles=False, files=False)
    name = project.workflow.name if isinstance(project, Project) else project.name
    return app_name(load_settings(directory), name) if (directory / KUBERNETES_FILE).exists() else deployment_name(name)


@contextmanager
def _certificate(directory: Path, tls: Path | None, cluster: Cluster) -> Iterator[Path]:
    """The folder of an admin's certificate. CertificateError if there is none here and none in the cluster."""
    folder = tls or admin_certificate(directory)
    app = _deployment(directory)
    if tls is not None or folder.is_dir() or not app:
        yield folder
        return
    secret = cluster.get("Secret", admin_secret(app))
    if secret is None:
        raise CertificateError(
            f"an admin's certificate is needed: neither {folder} is there nor the Secret {admin_secret(app)} of an "
            "operator; copy the folder .jellybean/certs/admin/admin of the project that was deployed, where "
            "`jellybean certs` makes and renews it, and give it as --tls"
        )
    with tempfile.TemporaryDirectory(prefix="jellybean-") as text:
        for name in (CA_FILE, CERTIFICATE_FILE, PRIVATE_KEY_FILE):
            if name not in (secret.get("data") or {}):
                raise InputError(f"Secret {admin_secret(app)} in {cluster.namespace} has no {name}")
            write_private_file(Path(text) / name, base64.b64decode(secret["data"][name]))
        yield Path(text)
