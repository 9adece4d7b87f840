"""Options that name a cluster and a namespace of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from jellybean_k8s import Cluster

Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Context of the kubeconfig; the current context by default. Of several clusters kubernetes.yaml names it.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace; the context's namespace by default. Of several clusters kubernetes.yaml names it.",
    ),
]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Kubeconfig file; $KUBECONFIG or ~/.kube/config by default.")
]


def connect_to(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Cluster:
    """Connect to the cluster that the options name. BadParameter if the kubeconfig is no file."""
    if kubeconfig is not None and not kubeconfig.is_file():
        reason = "is no file" if kubeconfig.exists() else "there is no such file"
        raise typer.BadParameter(f"--kubeconfig {kubeconfig}: {reason}")
    from jellybean_k8s import connect  # imports the client library

    return connect(kubeconfig, context, namespace)
