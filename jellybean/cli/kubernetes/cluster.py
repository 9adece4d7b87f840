"""Commands deploy, status, rollback and undeploy: a plan on a Kubernetes cluster."""

from __future__ import annotations

import datetime
import difflib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from jellybean.cli.app import Directory, Json, Overrides, Stale, app, example
from jellybean.cli.console import EXIT_FAILURE, out, print_json, progress, say
from jellybean.cli.kubernetes.deployed_project import deployed_project
from jellybean.cli.kubernetes.options import Context, Kubeconfig, Namespace, connect_to
from jellybean.cli.projects import open_served_project, planned_options, require_servable
from jellybean.display.terminal import BAD, GOOD
from jellybean.documents import AnyProject, Project, load_any_project
from jellybean.folders import state_folder

if TYPE_CHECKING:
    from jellybean_k8s import Cluster, DeployedPlan, DeploymentStatus, DeployOptions, DeployResult, SecretCertificate

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the change is complete.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite fields that other managers have set.")]
Back = Annotated[bool, typer.Option("--rollback", help="Roll back if the deployment does not become ready.")]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="Remove the running plan first, if the nodes have no room for two plans.")
]
EXIT_DIFFERENT = EXIT_FAILURE  # exit statuses are those of diff(1)

_CLUSTER_ONLY = ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "selfLink")


@app.command(
    epilog=example(
        "jellybean deploy my-digits --context edge-fleet --namespace digits --dry-run",
        "jellybean deploy my-digits --context edge-fleet --namespace digits --rollback",
    )
)
def deploy(
    directory: Directory,
    overrides: Overrides = None,
    stale: Stale = False,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print what would change, by a server-side dry run; exit status 1 if anything would."
        ),
    ] = False,
    wait: Wait = True,
    timeout: Timeout = 600.0,
    force: Force = False,
    back: Back = False,
    in_place: InPlace = False,
    certs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Certificates from `jellybean certs`; DIR/.jellybean/certs by default."),
    ] = None,
) -> None:
    """Deploy the plan to Kubernetes. A running plan is replaced without downtime. Can be run again at any time."""
    with planned_options(directory, overrides) as plan_overrides:
        project = open_served_project(directory, plan_overrides, stale=stale)
    require_servable(project)
    cluster = connect_to(kubeconfig, context, namespace)
    from jellybean_k8s import deploy as deploy_plan

    deployed, objects = _render_objects(project, cluster, certs, what_if=bool(overrides))
    if dry_run:
        _show_changes(cluster, deployed, objects, force=force)
        return
    with progress("deploy") as advance:
        options = _options(wait, timeout, force=force, undo_failed=back, in_place=in_place, progress=advance)
        outcome = deploy_plan(cluster, deployed, objects, options)
    _print_outcome(outcome, deployed.app, cluster)


@app.command(epilog=example("jellybean status my-digits --namespace digits"))
def status(
    directory: Directory,
    overrides: Overrides = None,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    json: Json = False,
) -> None:
    """Print the deployed revisions, the serving plan, and why pods do not run. Exit status 1 unless healthy."""
    name = _name(directory, overrides)
    cluster = connect_to(kubeconfig, context, namespace)
    from jellybean_k8s import read_status

    current = read_status(cluster, name)
    if json:
        print_json(_status_json(current))
    else:
        _print_status(current)
    if not current.is_well:
        raise typer.Exit(EXIT_FAILURE)


@app.command(
    epilog=example("jellybean rollback my-digits --namespace digits", "jellybean rollback my-digits --revision 3")
)
def rollback(
    directory: Directory,
    overrides: Overrides = None,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    revision: Annotated[
        int | None, typer.Option(min=1, help="Revision number from `status`; the previous revision by default.")
    ] = None,
    wait: Wait = True,
    timeout: Timeout = 600.0,
    force: Force = False,
    in_place: InPlace = False,
) -> None:
    """Deploy an earlier revision again."""
    name = _name(directory, overrides)
    cluster = connect_to(kubeconfig, context, namespace)
    from jellybean_k8s import rollback as roll_back

    with progress("rollback") as advance:
        options = _options(wait, timeout, force=force, undo_failed=False, in_place=in_place, progress=advance)
        outcome = roll_back(cluster, name, revision, options)
    _print_outcome(outcome, name, cluster)


@app.command(epilog=example("jellybean undeploy my-digits --namespace digits"))
def undeploy(
    directory: Directory,
    overrides: Overrides = None,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    wait: Wait = True,
    timeout: Timeout = 300.0,
) -> None:
    """Delete all objects of this project's deployments after in-flight requests are answered."""
    name = _name(directory, overrides)
    cluster = connect_to(kubeconfig, context, namespace)
    from jellybean_k8s import undeploy as delete_deployment

    deleted = delete_deployment(cluster, name, _options(wait, timeout))
    out.print(f"{name} deleted from {cluster.namespace}: {len(deleted)} objects", style=GOOD)


def show_changes(directory: Path, kubeconfig: Path | None, context: str | None, namespace: str | None) -> None:
    """Print what deploying a project would change (server-side dry run); typer.Exit(1) if it would change anything."""
    cluster = connect_to(kubeconfig, context, namespace)
    with planned_options(directory, None) as options:
        project = open_served_project(directory, options, stale=True)
    deployed, objects = _render_objects(project, cluster, None, what_if=False)
    _show_changes(cluster, deployed, objects, force=False)


def _render_objects(
    project: AnyProject, cluster: Cluster, certs: Path | None, *, what_if: bool
) -> tuple[DeployedPlan, tuple[Any, ...]]:
    """The project's plan and all its objects, including certificate secrets if certificates exist."""
    from jellybean_k8s import certificate_secrets, render

    monitored = cluster.serves("monitoring.coreos.com/v1")
    deployed = deployed_project(project, service_monitor=monitored, what_if=what_if)
    folder = certs or state_folder(project.directory) / "certs"
    secrets = certificate_secrets(deployed, folder) if certs is not None or (folder / "gateway").exists() else ()
    return deployed, (*secrets, *render(deployed))


def _name(directory: Path, overrides: list[str] | None) -> str:
    """Name of the project's deployment."""
    from jellybean.documents.kubernetes import load_settings
    from jellybean_k8s import app_name

    project = load_any_project(directory, overrides or (), profiles=False)
    name = project.workflow.name if isinstance(project, Project) else project.name
    return app_name(load_settings(project.directory), name)


def _options(wait: bool, timeout_s: float, **more: Any) -> DeployOptions:
    from jellybean_k8s import DeployOptions

    return DeployOptions(wait=wait, timeout_s=timeout_s, say=say, **more)


def _print_outcome(outcome: DeployResult, name: str, cluster: Cluster) -> None:
    if outcome.number is None:
        out.print(f"{name} in {cluster.namespace} already serves this plan: nothing was applied", style=GOOD)
        return
    counts = f"{len(outcome.applied)} objects applied, {len(outcome.pruned)} pruned"
    out.print(f"{name} in {cluster.namespace}: revision {outcome.number}, {counts}", style=GOOD)
    out.print(f"clients reach it at {name}.{cluster.namespace}.svc:8001", style="bold")


def _show_changes(cluster: Cluster, deployed: DeployedPlan, objects: tuple[Any, ...], *, force: bool) -> None:
    from jellybean_k8s import dry_run

    pairs = dry_run(cluster, deployed, objects, force=force)
    for before, after in pairs:
        for line in _difference(before, after):
            style = GOOD if line.startswith("+") else BAD if line.startswith("-") else "dim"
            out.print(line, style=style, soft_wrap=True)
    if pairs:
        raise typer.Exit(EXIT_DIFFERENT)
    out.print("nothing would change", style=GOOD)


def _difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Iterator[str]:
    from jellybean_k8s import to_yaml

    item = after or before or {}
    name = f"{item['kind']}/{item['metadata']['name']}"
    if after is None:
        yield f"- {name}: pruned"
        return
    if before is None:
        yield f"+ {name}: new"
        return
    old, new = (to_yaml(_without_cluster_fields(value)).splitlines() for value in (before, after))
    yield from difflib.unified_diff(old, new, name, name, lineterm="", n=2)


def _without_cluster_fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """The object without fields that the cluster sets; secrets are replaced by short hashes."""
    meta = {key: value for key, value in item["metadata"].items() if key not in _CLUSTER_ONLY}
    fields = {key: value for key, value in item.items() if key not in ("metadata", "status", "apiVersion")}
    if item["kind"] == "Secret":
        data = item.get("data") or {}
        fields["data"] = {key: hashlib.sha256(str(value).encode()).hexdigest()[:8] for key, value in data.items()}
    return {"metadata": meta, **_sorted(fields)}


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _print_status(found: DeploymentStatus) -> None:
    newest = found.revisions[-1]
    color = GOOD if found.is_well else BAD
    state = "is healthy" if found.is_well else "is not healthy"
    out.print(f"{found.app} in {found.namespace} {state}: plan {found.serving} serves", style=color)
    accuracy = "" if newest.accuracy is None else f", accuracy {newest.accuracy:.2f}"
    say(
        f"revision {newest.number} ({newest.state}), started {newest.began}, {newest.cost_usd_per_h:.2f} "
        f"USD/h{accuracy}"
    )
    table = Table(box=None, pad_edge=False)
    for column in ("set", "pods", "available", ""):
        table.add_column(column, justify="right" if column in ("pods", "available") else "left")
    for item in found.sets:
        table.add_row(item.name, str(item.wanted), str(item.available), item.lacks)
    out.print(table)
    drift = (f"{what}: run `jellybean deploy` again" for what in found.drift.words)
    for text in (*drift, *found.certificates.problems, *found.reasons):
        out.print(text, style=BAD, soft_wrap=True)
    for text in found.certificates.notes:
        say(text)
    for revision in found.revisions[:-1]:
        say(f"revision {revision.number} ({revision.state}), started {revision.began}, plan {revision.plan[:12]}")


def _status_json(found: DeploymentStatus) -> dict[str, Any]:
    import dataclasses

    drift = {"missing": ["/".join(key) for key in found.drift.missing], "drift": list(found.drift.words)}
    certificates = found.certificates
    earliest = [_certificate_json(item, certificates.at_unix_s) for item in certificates.certificates[:1]]
    ends = {
        "earliest": earliest[0] if earliest else None,
        "expired": [_certificate_json(item, certificates.at_unix_s) for item in certificates.expired],
        "late": [_certificate_json(item, certificates.at_unix_s) for item in certificates.late],
        "damaged": list(certificates.damaged),
        "unread": list(certificates.unread),
    }
    return {**dataclasses.asdict(found), **drift, "certificates": ends, "well": found.is_well}


def _certificate_json(item: SecretCertificate, at_unix_s: float) -> dict[str, Any]:
    expires = datetime.datetime.fromtimestamp(item.expires_unix_s, datetime.UTC).isoformat(timespec="seconds")
    own = {"secret": item.secret, "key": item.key, "identity": item.identity}
    return own | {"expires": expires, "left_s": round(item.expires_unix_s - at_unix_s)}
