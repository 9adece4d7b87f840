"""Command render: print a plan as Kubernetes objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jellybean.cli.app import Directory, Json, Overrides, Stale, app, checked_folder, example
from jellybean.cli.console import out, print_json
from jellybean.cli.kubernetes.deployed_project import deployed_project
from jellybean.cli.projects import open_served_project, require_servable
from jellybean.documents import AnyProject
from jellybean.errors import InputError
from jellybean.folders import write_output

if TYPE_CHECKING:
    from jellybean_k8s import Objects

ServiceMonitor = Annotated[
    bool, typer.Option("--service-monitor", help="Expose metrics with a ServiceMonitor instead of annotations.")
]


@app.command(
    epilog=example(
        "jellybean render my-digits | kubectl apply -f -",
        "jellybean render my-digits --kustomize base",
        "jellybean render my-digits --cluster edge | kubectl --context shops -n digits apply -f -",
    )
)
def render(
    directory: Directory,
    overrides: Overrides = None,
    stale: Stale = False,
    kustomize: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write a kustomize base to this folder instead of printing YAML."),
    ] = None,
    service_monitor: ServiceMonitor = False,
    resource: Annotated[
        bool, typer.Option("--resource", help="Print the project as a Workflow resource for `jellybean operator`.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="The objects of one of the clusters that kubernetes.yaml names.")
    ] = None,
    role: Annotated[bool, typer.Option("--role", help="Print only the RBAC Role that deploying needs.")] = False,
    json: Json = False,
) -> None:
    """Print the plan as Kubernetes objects, with the settings of kubernetes.yaml. Does not contact a cluster."""
    from jellybean_k8s import deployer_role, yaml_documents

    if role:
        _print_object(deployer_role(), json=json)
        return
    if resource:
        project = open_served_project(directory, overrides, stale=stale)
        _print_object(_resource(project), json=json)
        return
    if kustomize is not None:
        checked_folder("--kustomize", kustomize)
    project = open_served_project(directory, overrides, stale=stale)
    found = rendered_clusters(project, service_monitor=service_monitor, what_if=bool(overrides))
    if cluster is not None and cluster not in found:
        named = f"{', '.join(found)}" if "" not in found else "none"
        raise InputError(f"--cluster {cluster}: the clusters in kubernetes.yaml are {named}")
    chosen = found if cluster is None else {"": found[cluster]}
    if kustomize is not None:
        _write_bases(kustomize, chosen, json=json)
        return
    if len(chosen) > 1:
        raise InputError(f"the plan has objects for several clusters: give --cluster {' or --cluster '.join(found)}")
    (objects,) = chosen.values()
    if json:
        print_json({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    else:
        print(yaml_documents(objects), end="")


def _write_bases(folder: Path, clusters: Mapping[str, Objects], *, json: bool) -> None:
    """Write a kustomize base; of several clusters one for each, in a folder of its name."""
    from jellybean_k8s import kustomize_base

    written = []
    for name, objects in clusters.items():
        base = folder / name if name else folder
        base.mkdir(parents=True, exist_ok=True)
        texts = kustomize_base(objects)
        for file, text in texts.items():
            write_output(base / file, text)
        written.append({"folder": str(base), "files": list(texts), "objects": len(objects)})
        if not json:
            out.print(f"wrote {len(objects)} objects to {base}", soft_wrap=True)
    if json:
        print_json(written[0] if len(written) == 1 else {"clusters": dict(zip(clusters, written, strict=True))})


def _print_object(value: Mapping[str, Any], *, json: bool) -> None:
    from jellybean_k8s import to_yaml

    if json:
        print_json(value)
    else:
        print(to_yaml(value), end="")


def _resource(project: AnyProject) -> dict[str, Any]:
    from jellybean.documents.kubernetes import load_kubernetes
    from jellybean.operator.resource import to_resource

    require_servable(project)
    return to_resource(project, load_kubernetes(project.directory))


def rendered_clusters(project: AnyProject, *, service_monitor: bool, what_if: bool) -> dict[str, Objects]:
    """The objects of a project's plan by cluster, those of a single cluster under an empty name."""
    from jellybean_k8s import render as render_plan

    require_servable(project)
    deployed = deployed_project(project, service_monitor=service_monitor, what_if=what_if)
    if not deployed.clusters:
        return {"": render_plan(deployed)}
    views = {name: deployed.in_cluster(name, service_monitor=service_monitor) for name in deployed.clusters}
    return {name: render_plan(view) for name, view in views.items()}
