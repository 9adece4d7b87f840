"""deploy, status, rollback, undeploy: a plan on a Kubernetes cluster."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from jellybean.cli.app import Directory, Json, Overrides, app, example
from jellybean.cli.console import EXIT_FAILURE, out, print_json, progress, say
from jellybean.cli.current import plan_of
from jellybean.documents import Project, load_project
from jellybean.errors import JellyBeanError
from jellybean.folders import state_folder

if TYPE_CHECKING:
    from jellybean_k8s import Cluster, DeployedPlan, DeploymentStatus, DeployOptions, DeployResult

Context = Annotated[str | None, typer.Option("--context", help="Of the kubeconfig; the current one unless given.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="The context's unless given.")]
Kubeconfig = Annotated[Path | None, typer.Option("--kubeconfig", help="Instead of $KUBECONFIG or ~/.kube/config.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done, and see that it is.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait.")]
Force = Annotated[bool, typer.Option("--force", help="Take over fields that others have set.")]
Back = Annotated[bool, typer.Option("--rollback", help="If it does not come up, take it back.")]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="The running plan goes first: where nodes have no room for two.")
]
EXIT_DIFFERENT = EXIT_FAILURE  # as of `diff`

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
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the server would change; status 1 if anything would.")
    ] = False,
    wait: Wait = True,
    timeout: Timeout = 600.0,
    force: Force = False,
    back: Back = False,
    in_place: InPlace = False,
    certs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Made by `jellybean certs`; DIR/.jellybean/certs unless given."),
    ] = None,
) -> None:
    """Serve the plan on Kubernetes, beside the running one, which goes when this one serves. May be run again."""
    project = load_project(directory, overrides or ())
    cluster = connect_to(kubeconfig, context, namespace)
    from jellybean_k8s import deploy as bring

    deployed, objects = _wanted(project, cluster, certs)
    if dry_run:
        _show_changes(cluster, deployed, objects, force=force)
        return
    with progress("deploy") as advance:
        options = _options(wait, timeout, force=force, undo_failed=back, in_place=in_place, progress=advance)
        outcome = bring(cluster, deployed, objects, options)
    _tell(outcome, deployed.app, cluster)


@app.command(epilog=example("jellybean status my-digits --namespace digits"))
def status(
    directory: Directory,
    overrides: Overrides = None,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    json: Json = False,
) -> None:
    """Show what is deployed, what serves, and why pods do not run. Status 1 unless all is well."""
    name = _name(directory, overrides)
    cluster = connect_to(kubeconfig, context, namespace)
    from jellybean_k8s import read_status

    found = read_status(cluster, name)
    if json:
        print_json(_status_json(found))
    else:
        _print_status(found)
    if not found.is_well:
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
    revision: Annotated[int | None, typer.Option(min=1, help="As `status` numbers them; else the one before.")] = None,
    wait: Wait = True,
    timeout: Timeout = 600.0,
    force: Force = False,
    in_place: InPlace = False,
) -> None:
    """Serve an earlier revision again."""
    name = _name(directory, overrides)
    cluster = connect_to(kubeconfig, context, namespace)
    from jellybean_k8s import rollback as back_to

    with progress("rollback") as advance:
        options = _options(wait, timeout, force=force, undo_failed=False, in_place=in_place, progress=advance)
        outcome = back_to(cluster, name, revision, options)
    _tell(outcome, name, cluster)


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
    """Take away all that deployments of this project made, once requests in hand are answered."""
    name = _name(directory, overrides)
    cluster = connect_to(kubeconfig, context, namespace)
    from jellybean_k8s import undeploy as take_away

    gone = take_away(cluster, name, _options(wait, timeout))
    out.print(f"{name} is gone from {cluster.namespace}: {len(gone)} objects", style="green")


def connect_to(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Cluster:
    """The cluster that the options name. JellyBeanError without the client library."""
    try:
        from jellybean_k8s import connect
    except ImportError as error:
        raise JellyBeanError("clusters need the Kubernetes client: pip install 'jellybean-serving[k8s]'") from error
    return connect(kubeconfig, context, namespace)


def show_changes(directory: Path, kubeconfig: Path | None, context: str | None, namespace: str | None) -> None:
    """What deploying a project would change, by a server-side dry run; typer.Exit with 1 if anything would."""
    cluster = connect_to(kubeconfig, context, namespace)
    deployed, objects = _wanted(load_project(directory), cluster, None)
    _show_changes(cluster, deployed, objects, force=False)


def _wanted(project: Project, cluster: Cluster, certs: Path | None) -> tuple[DeployedPlan, tuple[Any, ...]]:
    """The project's plan and all of its objects, certificates included where they were made."""
    from jellybean_k8s import certificate_secrets, render

    deployed = _deployed(project)
    folder = certs or state_folder(project.directory) / "certs"
    secrets = certificate_secrets(deployed, folder) if certs is not None or (folder / "gateway").exists() else ()
    monitored = cluster.serves("monitoring.coreos.com/v1")
    return deployed, (*secrets, *render(deployed.plan, deployed.settings, service_monitor=monitored))


def _deployed(project: Project) -> DeployedPlan:
    from jellybean.documents.kubernetes import load_settings
    from jellybean_k8s import DeployedPlan

    settings = load_settings(project.directory)
    return DeployedPlan(plan_of(project), settings)


def _name(directory: Path, overrides: list[str] | None) -> str:
    """Of the deployment, which does not depend on a plan."""
    from jellybean.documents.kubernetes import load_settings
    from jellybean_k8s import app_name

    project = load_project(directory, overrides or (), profiles=False)
    return app_name(load_settings(project.directory), project.workflow.name)


def _options(wait: bool, timeout_s: float, **more: Any) -> DeployOptions:
    from jellybean_k8s import DeployOptions

    return DeployOptions(wait=wait, timeout_s=timeout_s, say=say, **more)


def _tell(outcome: DeployResult, name: str, cluster: Cluster) -> None:
    if outcome.number is None:
        out.print(f"{name} serves this in {cluster.namespace} already: nothing was applied", style="green")
        return
    counts = f"{len(outcome.applied)} objects applied, {len(outcome.pruned)} pruned"
    out.print(f"{name} in {cluster.namespace}: revision {outcome.number}, {counts}", style="green")
    out.print(f"clients reach it at {name}.{cluster.namespace}.svc:8001", style="bold")


def _show_changes(cluster: Cluster, deployed: DeployedPlan, objects: tuple[Any, ...], *, force: bool) -> None:
    from jellybean_k8s import dry_run

    pairs = dry_run(cluster, deployed, objects, force=force)
    for before, after in pairs:
        for line in _difference(before, after):
            style = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
            out.print(line, style=style, soft_wrap=True)
    if pairs:
        raise typer.Exit(EXIT_DIFFERENT)
    out.print("nothing would change", style="green")


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
    old, new = (to_yaml(_own(value)).splitlines() for value in (before, after))
    yield from difflib.unified_diff(old, new, name, name, lineterm="", n=2)


def _own(item: Mapping[str, Any]) -> dict[str, Any]:
    """What people have a say in; of secrets only whether they change."""
    meta = {key: value for key, value in item["metadata"].items() if key not in _CLUSTER_ONLY}
    found = {key: value for key, value in item.items() if key not in ("metadata", "status", "apiVersion")}
    if item["kind"] == "Secret":
        data = item.get("data") or {}
        found["data"] = {key: hashlib.sha256(str(value).encode()).hexdigest()[:8] for key, value in data.items()}
    return {"metadata": meta, **_sorted(found)}


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _print_status(found: DeploymentStatus) -> None:
    newest = found.revisions[-1]
    color = "green" if found.is_well else "red"
    state = "is well" if found.is_well else "is not as it should be"
    out.print(f"{found.app} in {found.namespace} {state}: plan {found.serving} serves", style=color)
    accuracy = "" if newest.accuracy is None else f", accuracy {newest.accuracy:.2f}"
    say(f"revision {newest.number} ({newest.state}), begun {newest.began}, {newest.cost_usd_per_h:.2f} USD/h{accuracy}")
    table = Table(box=None, pad_edge=False)
    for column in ("set", "pods", "available", ""):
        table.add_column(column, justify="right" if column in ("pods", "available") else "left")
    for item in found.sets:
        table.add_row(item.name, str(item.wanted), str(item.available), item.lacks)
    out.print(table)
    for text in (*(f"{name} is missing: deploy again" for name in found.missing), *found.reasons):
        out.print(text, style="red", soft_wrap=True)
    for revision in found.revisions[:-1]:
        say(f"revision {revision.number} ({revision.state}), begun {revision.began}, plan {revision.plan[:12]}")


def _status_json(found: DeploymentStatus) -> dict[str, Any]:
    import dataclasses

    return {**dataclasses.asdict(found), "well": found.is_well}
