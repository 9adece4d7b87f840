"""Options of commands that call a gateway: the one that is up for DIR, or one elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jellybean.cli.command_resources import open_for_command
from jellybean.quantities import did_you_mean

if TYPE_CHECKING:
    from jellybean.serving.endpoint import Endpoint
    from jellybean.serving.local.settings import JoinedSettings, LaunchSettings

GatewayAt = Annotated[
    str | None,
    typer.Option("--gateway", metavar="HOST:PORT", help="A gateway on another machine, instead of the one up for DIR."),
]
AdminTls = Annotated[
    Path | None,
    typer.Option(
        "--tls", metavar="FOLDER", help="With --gateway or --context: an admin's certificate; DIR's by default."
    ),
]
AtContext = Annotated[
    str | None,
    typer.Option("--context", help="The gateway of DIR's deployment in Kubernetes, by this context of the kubeconfig."),
]
AtNamespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="The namespace of the deployment; the context's by default.")
]
AtKubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Kubeconfig file of --context; $KUBECONFIG or ~/.kube/config by default."),
]


@dataclass(frozen=True, slots=True)
class InCluster:
    """Options that name a deployment in Kubernetes; none of them: it is not meant."""

    context: str | None = None
    namespace: str | None = None
    kubeconfig: Path | None = None

    @property
    def is_given(self) -> bool:
        return (self.context, self.namespace, self.kubeconfig) != (None, None, None)


def arguments_again(directory: Path, gateway: str | None, tls: Path | None, cluster: InCluster) -> str:
    """DIR and the options that name a gateway elsewhere, as arguments of a further command that asks it."""
    options = {
        "--gateway": gateway,
        "--tls": tls,
        "--context": cluster.context,
        "--namespace": cluster.namespace,
        "--kubeconfig": cluster.kubeconfig,
    }
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    return shlex.join([str(directory), *given])


OfWorkflow = Annotated[
    str,
    typer.Option("--workflow", metavar="NAME", help="Which workflow, if the project has several."),
]


def chosen_workflow(names: Collection[str], workflow: str) -> str:
    """The workflow of `--workflow`, or the only one. BadParameter if there is no such one, or it is not said which."""
    if workflow and workflow not in names:
        raise unknown_workflow(f"--workflow {workflow}", workflow, names)
    if not workflow and len(names) > 1:
        raise typer.BadParameter(f"there are several workflows ({', '.join(names)}): say which with --workflow")
    return workflow or next(iter(names))


def unknown_workflow(option: str, workflow: str, names: Collection[str]) -> typer.BadParameter:
    """The error of an option that names a workflow which the project, with those in `names`, lacks."""
    hint = did_you_mean(workflow, names)
    near = f"; {hint}" if hint else ""
    return typer.BadParameter(f"{option}: the project has no workflow {workflow!r}; it has {', '.join(names)}{near}")


def check_settings(settings: LaunchSettings | JoinedSettings) -> None:
    """BadParameter for options of a run that exclude each other, before anything is planned."""
    from jellybean.serving.errors import SettingsError

    try:
        settings.check()
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error


def given_endpoint(
    directory: Path,
    gateway: str | None,
    tls: Path | None,
    cluster: InCluster = InCluster(),
    workflow: str = "",
) -> Endpoint | None:
    """The gateway of `--gateway`, or of the deployment of `--context` and `--namespace`; None if none is given.

    The way into a cluster is open until the command ends. CertificateError for a missing or invalid certificate.
    """
    if gateway is not None and cluster.is_given:
        raise typer.BadParameter("--gateway names an address, --context a deployment in Kubernetes: give one of them")
    if cluster.is_given:
        from jellybean.cli.serving.in_cluster import deployed_endpoint

        found = deployed_endpoint(directory, tls, cluster.kubeconfig, cluster.context, cluster.namespace)
        return replace(open_for_command(found), workflow=workflow)
    if gateway is None:
        if tls is not None:
            raise typer.BadParameter("--tls belongs to --gateway: a plan that is up here needs no certificate")
        return None
    from jellybean.serving.endpoint import remote_endpoint

    return replace(remote_endpoint(directory, gateway, tls), workflow=workflow)
