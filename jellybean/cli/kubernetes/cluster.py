"""Commands deploy, status, rollback and undeploy: a plan on a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jellybean.cli.app import Directory, Json, Overrides, Stale, app, example
from jellybean.cli.console import out, progress, say
from jellybean.cli.exit_status import EXIT_FAILURE
from jellybean.cli.kubernetes.changes import print_changes
from jellybean.cli.kubernetes.clusters import cluster_parts, clusters_of, connect_to_deployment, require_clusters
from jellybean.cli.kubernetes.options import Context, Kubeconfig, Namespace
from jellybean.cli.kubernetes.outcomes import place_of, print_results, print_status, tell_relay
from jellybean.cli.projects import open_served_project, require_servable
from jellybean.display.terminal import GOOD
from jellybean.documents import Project, load_any_project

if TYPE_CHECKING:
    from jellybean_k8s import ClusterPart, DeployOptions, DeployResult

APPLIED = "what was applied stays in the cluster: the same command goes on from there"  # after Ctrl-C
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the change is complete.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite fields that other managers have set.")]
Back = Annotated[bool, typer.Option("--rollback", help="Roll back if the deployment does not become ready.")]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="Remove the running plan first, if the nodes have no room for two plans.")
]
SkipOffline = Annotated[
    bool,
    typer.Option(
        "--skip-offline",
        help="Of several clusters, leave out those that do not answer now, but for the gateway's; the next deploy "
        "brings them up to date (after a rollback: rollback --revision N).",
    ),
]


@app.command(
    epilog=example(
        "jellybean deploy my-digits --context edge-fleet --namespace digits --dry-run",
        "jellybean deploy my-digits --context edge-fleet --namespace digits --rollback",
        "jellybean deploy my-digits --skip-offline",
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
    skip_offline: SkipOffline = False,
    certs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Certificates from `jellybean certs`; DIR/.jellybean/certs by default."),
    ] = None,
) -> None:
    """Deploy the plan to Kubernetes, to all clusters that kubernetes.yaml names, or one.

    A running plan is replaced without downtime. Can be run again at any time.
    """
    project = open_served_project(directory, overrides, stale=stale)
    require_servable(project)
    specs = clusters_of(project.directory)
    require_clusters(specs, skip_offline=skip_offline)
    clusters = connect_to_deployment(specs, kubeconfig, context, namespace)
    parts = cluster_parts(project, clusters, certs, what_if=bool(overrides))
    if dry_run:
        print_changes(parts, force=force, skip_offline=skip_offline)
        return
    tell_relay(parts)
    with progress("deploy", kept=APPLIED) as advance:
        options = _options(wait, timeout, force=force, undo_failed=back, in_place=in_place, progress=advance)
        results = _deploy(parts, options, skip_offline=skip_offline)
    print_results(results, parts[0].deployed.app, clusters)


def _deploy(parts: Sequence[ClusterPart], options: DeployOptions, *, skip_offline: bool) -> Mapping[str, DeployResult]:
    from jellybean_k8s import deploy as deploy_part
    from jellybean_k8s import deploy_parts

    (first, *others) = parts
    if first.name or others:
        return deploy_parts(parts, options, skip_offline=skip_offline)
    return {"": deploy_part(first.cluster, first.deployed, first.objects, options)}


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
    clusters = connect_to_deployment(clusters_of(directory), kubeconfig, context, namespace)
    from jellybean_k8s import read_status, read_statuses

    current = read_status(clusters[""], name) if "" in clusters else read_statuses(clusters, name)
    print_status(current, json=json)
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
    skip_offline: SkipOffline = False,
) -> None:
    """Deploy an earlier revision again, in all clusters that kubernetes.yaml names, or one."""
    name = _name(directory, overrides)
    specs = clusters_of(directory)
    require_clusters(specs, skip_offline=skip_offline)
    clusters = connect_to_deployment(specs, kubeconfig, context, namespace)
    from jellybean_k8s import rollback as roll_back
    from jellybean_k8s import rollback_parts

    with progress("rollback", kept=APPLIED) as advance:
        options = _options(wait, timeout, force=force, undo_failed=False, in_place=in_place, progress=advance)
        if "" in clusters:
            results = {"": roll_back(clusters[""], name, revision, options)}
        else:
            results = dict(rollback_parts(clusters, name, revision, options, skip_offline=skip_offline))
    print_results(results, name, clusters)


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
    clusters = connect_to_deployment(clusters_of(directory), kubeconfig, context, namespace)
    from jellybean_k8s import undeploy as delete_deployment
    from jellybean_k8s import undeploy_parts

    options = _options(wait, timeout)
    if "" in clusters:
        deleted = {"": delete_deployment(clusters[""], name, options)}
    else:
        deleted = dict(undeploy_parts(clusters, name, options))
    for where, keys in deleted.items():
        out.print(f"{name} deleted from {place_of(where, clusters)}: {len(keys)} objects", style=GOOD)


def show_changes(directory: Path, kubeconfig: Path | None, context: str | None, namespace: str | None) -> None:
    """Print what deploying a project would change (server-side dry run); typer.Exit(1) if it would change anything."""
    clusters = connect_to_deployment(clusters_of(directory), kubeconfig, context, namespace)
    project = open_served_project(directory, None, stale=True)
    print_changes(cluster_parts(project, clusters, None, what_if=False), force=False)


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
