"""Command certs: issue certificates to gateway, workers and clients from a development CA."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jellybean.cli.app import Directory, Json, Overrides, Stale, app, example
from jellybean.cli.console import out, print_json, say, warn
from jellybean.cli.current_plan import load_current_plan
from jellybean.cli.exit_status import EXIT_FAILURE
from jellybean.cli.kubernetes.clusters import clusters_of, connect_to_deployment, refuse_options_of_one
from jellybean.cli.kubernetes.options import Context, Kubeconfig
from jellybean.cli.projects import open_served_project
from jellybean.cli.serving.gateway_hosts import context_namespace, deployment_name_of, gateway_hosts
from jellybean.cli.serving.secret_renewal import GATEWAY_FOLDER, SecretRenewal
from jellybean.display.terminal import BAD, GOOD
from jellybean.errors import InputError
from jellybean.folders import state_folder
from jellybean_agent import (
    PRIVATE_KEY_FILE,
    AgentError,
    plan_view,
    read_credentials,
    renewal_command,
    stays_inside_folder,
    utc_minute,
)
from jellybean_protos.plan_format import qualified_name
from jellybean_solver import to_document

if TYPE_CHECKING:
    from jellybean.documents import AnyProject
    from jellybean.documents.kubernetes_clusters import ClusterSpec
    from jellybean_agent import Credentials, Identity, PlanView


_OutFolder = Annotated[Path | None, typer.Option("--out", help="Output folder; DIR/.jellybean/certs by default.")]
_Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", help="DNS name or IP address of the gateway; by default as before. May be repeated."),
]
_Clients = Annotated[
    list[str] | None,
    typer.Option(
        "--client", help="Client that may send requests; WORKFLOW/NAME: only to that one of several. May be repeated."
    ),
]
_Admins = Annotated[list[str] | None, typer.Option("--admin", help="Client that may also drain. May be repeated.")]
_Relay = Annotated[
    bool,
    typer.Option(
        "--relay",
        help="Also for a relay, which workers that only dial out connect to; made anyway if kubernetes.yaml names "
        "several clusters.",
    ),
]
_Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of the deployment in Kubernetes, for the names of the gateway's Service; that of --context "
        "by default.",
    ),
]
_Hours = Annotated[float, typer.Option(min=0.01, max=8760.0, help="Validity of the certificates.")]
_NewCa = Annotated[
    bool,
    typer.Option("--new-ca", help="Create a new CA: trusted from now on, used for signing from the next run on."),
]
_Renew = Annotated[
    bool, typer.Option("--renew", help="Also write new certificates into the Secrets of the deployment in Kubernetes.")
]


@app.command(
    epilog=example(
        "jellybean certs my-digits --host gateway.example",
        "jellybean certs my-digits --context edge-fleet --namespace digits",
        "jellybean certs my-digits --renew --context edge-fleet --namespace digits",
        "jellybean certs my-digits --client alice",
        "jellybean certs my-two --client digits/bob",
    )
)
def certs(
    directory: Directory,
    overrides: Overrides = None,
    stale: Stale = False,
    out_folder: _OutFolder = None,
    hosts: _Hosts = None,
    clients: _Clients = None,
    admins: _Admins = None,
    relay: _Relay = False,
    context: Context = None,
    namespace: _Namespace = None,
    kubeconfig: Kubeconfig = None,
    hours: _Hours = 168.0,
    new_ca: _NewCa = False,
    renew: _Renew = False,
    json: Json = False,
) -> None:
    """Issue or renew certificates for the gateway, all workers of the plan, and clients.

    Running processes reload them, in pods too.
    """
    from jellybean.serving.enrolment.authority import certificate_hosts, open_authority  # needs cryptography

    project = open_served_project(directory, overrides, stale=stale)
    view = plan_view(to_document(load_current_plan(project, what_if=bool(overrides))))
    folder = out_folder or state_folder(project.directory) / "certs"
    is_first = not (folder / "ca" / PRIVATE_KEY_FILE).exists()
    if renew and is_first:
        reason = "has no authority: give --renew where the deployment's certificates were made"
        raise InputError(f"{folder / 'ca'} {reason}")
    deployment = _Deployment.of(project, kubeconfig, context, namespace)
    renewal = deployment.renewal(project, view) if renew else None
    authority = open_authority(folder / "ca", renew=new_ca)
    signs = renewal is not None and renewal.may_sign(authority)
    made = _identities(view, clients or ["client"], admins or ["admin"])
    made |= _relay_identity(view) if relay or len(deployment.clusters) > 1 else {}
    made |= {} if renewal is None else renewal.identities
    at_namespace = deployment.gateway_namespace if renewal is None else renewal.namespace
    names = gateway_hosts(project, certificate_hosts(folder / GATEWAY_FOLDER), hosts or (), at_namespace)
    for path, identity in made.items():
        own = names if path == GATEWAY_FOLDER else ()
        authority.equip(_inside(folder, path), identity, hosts=own, life_s=hours * 3600.0)
    secrets = () if renewal is None else renewal.write(authority, folder, signs=signs)
    _tell_authority(folder, is_first=is_first, is_next=new_ca)
    kept = _left_alone(folder, made)
    if json:
        print_json(_result(folder, made, kept) | ({} if renewal is None else _renewed(renewal, secrets, signs=signs)))
    else:
        _tell_issued(folder, len(made), hours)
        if renewal is not None:
            app = deployment_name_of(project)
            out.print(renewal.outcome(app, secrets, signs=signs), style=GOOD if signs else BAD)
        if clients or admins:
            _tell_callers(folder, made)
        _tell_left_alone(folder, kept, directory)
        out.print(f"{folder / 'ca'} has the CA's private key: do not copy it to other machines", style="bold")
    _fail_if_missed(renewal)


@dataclass(frozen=True, slots=True)
class _Deployment:
    """Where the project is deployed in Kubernetes, by options and kubernetes.yaml."""

    clusters: Mapping[str, ClusterSpec]
    kubeconfig: Path | None
    context: str | None
    namespace: str | None

    @classmethod
    def of(
        cls, project: AnyProject, kubeconfig: Path | None, context: str | None, namespace: str | None
    ) -> _Deployment:
        clusters = clusters_of(project.directory)
        refuse_options_of_one(clusters, context, namespace)
        return cls(clusters, kubeconfig, context, namespace)

    def renewal(self, project: AnyProject, view: PlanView) -> SecretRenewal:
        """The Secrets of the deployment."""
        connected = connect_to_deployment(self.clusters, self.kubeconfig, self.context, self.namespace)
        return SecretRenewal.of(deployment_name_of(project), view.name, connected)

    @property
    def gateway_namespace(self) -> str:
        """The namespace of the options, or of the gateway's cluster, which is the first; else empty."""
        named = next((spec.namespace for spec in self.clusters.values()), None)
        return named or context_namespace(self.kubeconfig, self.context, self.namespace)


def _tell_issued(folder: Path, count: int, hours: float) -> None:
    out.print(
        f"{count} certificates in {folder}, valid for {hours:g} hours; run the same command to renew them", style=GOOD
    )


def _fail_if_missed(renewal: SecretRenewal | None) -> None:
    """Exit with status 1 if a cluster was not renewed, and say why."""
    for name, reason in (renewal.missed if renewal is not None else {}).items():
        warn(f"{name} was not renewed: {reason}; run the same command again when that is over")
    if renewal is not None and renewal.missed:
        raise typer.Exit(EXIT_FAILURE)


def _renewed(renewal: SecretRenewal, secrets: Sequence[str], *, signs: bool) -> dict[str, object]:
    """What --json prints of a deployment's Secrets."""
    return {"secrets": list(secrets), "secrets_signed": signs, "not_reached": dict(renewal.missed)}


def _result(folder: Path, made: Mapping[str, Identity], kept: Mapping[str, Credentials]) -> dict[str, object]:
    """What --json prints of the folder."""
    return {
        "folder": str(folder),
        "identities": {path: identity.uri for path, identity in made.items()},
        "not_renewed": {path: credentials.expires_unix_s for path, credentials in kept.items()},
    }


def _tell_authority(folder: Path, *, is_first: bool, is_next: bool) -> None:
    """Say what a new authority means: of the first one here, and of one that is trusted now and signs later."""
    if is_first:
        say(
            f"{folder / 'ca'} is a new authority: only processes with its certificates know it. To call a gateway of "
            "another copy of this project, copy .jellybean/certs/admin/admin from there instead, and give it as --tls"
        )
    if is_next:
        say(
            "the new CA is trusted from now on and signs from the next `jellybean certs` on: run that when all "
            "processes have the new files and all joined boxes have renewed (after a third of their certificates' "
            "validity)"
        )


def _tell_callers(folder: Path, made: Mapping[str, Identity]) -> None:
    """Say which folder each client and admin gets."""
    for path, identity in made.items():
        if path.startswith(("client/", "admin/")):
            say(f"{identity}: give it the folder {folder / path}, to call with as --tls")


def _identities(view: PlanView, clients: Sequence[str], admins: Sequence[str]) -> dict[str, Identity]:
    """Path of a certificate's folder -> whose it is: clients, admins, the workers of the plan, and the gateway."""
    from jellybean_agent import Identity, Role

    named = [(Role.ADMIN, name) for name in admins]
    named += [(Role.AGENT, worker.name) for worker in view.serving]
    found = {f"client/{name}": _client(view, name) for name in clients}
    found |= {f"{role.value}/{name}": Identity(view.name, role, name) for role, name in named}
    return {**found, GATEWAY_FOLDER: Identity(view.name, Role.GATEWAY)}


def _relay_identity(view: PlanView) -> dict[str, Identity]:
    """Path of the folder of a relay's certificate -> its identity."""
    from jellybean_agent import Identity, Role

    return {f"{Role.RELAY.value}/relay": Identity(view.name, Role.RELAY, "relay")}


def _client(view: PlanView, text: str) -> Identity:
    """The identity of a client, of several workflows perhaps only of one. InputError if there is none of this name."""
    from jellybean_agent import Identity, Role

    workflow, separator, name = text.rpartition("/")
    if not separator:
        return Identity(view.name, Role.CLIENT, text)
    if workflow not in view.workflows:
        known = f"has {', '.join(view.workflows)}" if view.workflows else "is of one workflow: give the name alone"
        raise InputError(f"--client {text}: the plan has no workflow {workflow!r}; it {known}")
    return Identity(qualified_name(view.name, workflow), Role.CLIENT, name)


def _tell_left_alone(folder: Path, kept: Mapping[str, Credentials], directory: Path) -> None:
    """Say which certificates were not renewed, how long they are valid, and what renews them."""
    for path, credentials in kept.items():
        until_s = credentials.expires_unix_s
        when = f"{'expired on' if until_s < time.time() else 'valid until'} {utc_minute(until_s)}"
        command = renewal_command(folder, credentials.identity, directory)
        say(f"{path} is not renewed ({when}); `{command}` renews it")


def _left_alone(folder: Path, made: Collection[str]) -> dict[str, Credentials]:
    """Path in the folder -> credentials, of clients, admins and a relay of earlier calls that were not made now."""
    found = {}
    for role in ("client", "admin", "relay"):
        for path in sorted([*(folder / role).glob("*"), *(folder / role).glob("*/*")]):
            name = path.relative_to(folder).as_posix()
            if name not in made:
                with contextlib.suppress(AgentError):  # no certificate, or a damaged one
                    found[name] = read_credentials(path)
    return found


def _inside(folder: Path, path: str) -> Path:
    if not stays_inside_folder(path):
        raise InputError(f"{path!r} is not a valid name: its path is outside {folder}")
    return folder / path
