"""Options of commands that call a gateway: the one that is up for DIR, or one elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from jellybean.cli.command_resources import open_for_command
from jellybean.documents import require_folder
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
class GatewayOptions:
    """The options that name a gateway elsewhere, or none: then the one that is up for DIR is meant."""

    gateway: str | None = None
    tls: Path | None = None
    context: str | None = None
    namespace: str | None = None
    kubeconfig: Path | None = None

    def endpoint(self, directory: Path, workflow: str = "") -> Endpoint | None:
        """The gateway that is named; None if none is: DIR must be a folder then, or a removed one whose run is up.

        The way into a cluster is open until the command ends. CertificateError for a missing or invalid certificate.
        """
        in_cluster = (self.context, self.namespace, self.kubeconfig) != (None, None, None)
        if in_cluster and self.gateway is not None:
            raise typer.BadParameter(
                "--gateway names an address, --context a deployment in Kubernetes: give one of them"
            )
        if in_cluster:
            from jellybean.cli.serving.in_cluster import deployed_endpoint

            found = deployed_endpoint(directory, self.tls, self.kubeconfig, self.context, self.namespace)
            return replace(open_for_command(found), workflow=workflow)
        if self.gateway is None:
            if self.tls is not None:
                raise typer.BadParameter("--tls belongs to --gateway: a plan that is up here needs no certificate")
            if directory.exists() or not _is_up(directory):
                require_folder(directory)
            return None
        from jellybean.serving.endpoint import remote_endpoint

        return replace(remote_endpoint(directory, self.gateway, self.tls), workflow=workflow)

    def arguments(self, directory: Path) -> str:
        """DIR and these options, as arguments of a further command that asks the same gateway."""
        given = [
            part
            for one in fields(self)
            if (value := getattr(self, one.name)) is not None
            for part in (f"--{one.name}", str(value))
        ]
        return shlex.join([str(directory), *given])


_OPTIONS = {
    "gateway": GatewayAt,
    "tls": AdminTls,
    "context": AtContext,
    "namespace": AtNamespace,
    "kubeconfig": AtKubeconfig,
}


def takes_gateway(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `GatewayOptions` in place of its parameter `at`, which gets their values."""
    hints = get_type_hints(command, include_extras=True)
    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=_OPTIONS[name]) for name in _OPTIONS]
    own = [
        one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[one.name])
        for one in signature(command).parameters.values()
        if one.name != "at"
    ]

    @wraps(command)
    def with_options(*arguments: Any, **given: Any) -> None:
        at = GatewayOptions(**{name: given.pop(name, None) for name in _OPTIONS})
        command(*arguments, **given, at=at)

    parameters = [*own, *options]
    with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options


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


def _is_up(directory: Path) -> bool:
    """True if processes of a project run, though it was removed."""
    from jellybean.serving.run_state import run_of

    return run_of(directory.resolve()) is not None
