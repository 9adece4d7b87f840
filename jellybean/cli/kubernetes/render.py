"""Command render: print a plan as Kubernetes objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jellybean.cli.app import Directory, Json, Overrides, Stale, app, checked_folder, example
from jellybean.cli.console import out, print_json
from jellybean.cli.kubernetes.deployed_project import deployed_project
from jellybean.cli.projects import open_served_project, planned_options, require_servable
from jellybean.documents import AnyProject

if TYPE_CHECKING:
    from jellybean_k8s import Objects

ServiceMonitor = Annotated[
    bool, typer.Option("--service-monitor", help="Expose metrics with a ServiceMonitor instead of annotations.")
]


@app.command(
    epilog=example("jellybean render my-digits | kubectl apply -f -", "jellybean render my-digits --kustomize base")
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
    role: Annotated[bool, typer.Option("--role", help="Print only the RBAC Role that deploying needs.")] = False,
    json: Json = False,
) -> None:
    """Print the plan as Kubernetes objects, with the settings of kubernetes.yaml. Does not contact a cluster."""
    from jellybean_k8s import deployer_role, kustomize_base, yaml_documents

    if role:
        _print_object(deployer_role(), json=json)
        return
    if resource:
        with planned_options(directory, overrides) as options:
            project = open_served_project(directory, options, stale=stale)
        _print_object(_resource(project), json=json)
        return
    if kustomize is not None:
        checked_folder("--kustomize", kustomize)
    with planned_options(directory, overrides) as options:
        project = open_served_project(directory, options, stale=stale)
    objects = render_objects(project, service_monitor=service_monitor, what_if=bool(overrides))
    if kustomize is None:
        if json:
            print_json({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        else:
            print(yaml_documents(objects), end="")
        return
    kustomize.mkdir(parents=True, exist_ok=True)
    texts = kustomize_base(objects)
    for name, text in texts.items():
        (kustomize / name).write_text(text, encoding="utf-8")
    if json:
        print_json({"folder": str(kustomize), "files": list(texts), "objects": len(objects)})
        return
    out.print(f"wrote {len(objects)} objects to {kustomize}", soft_wrap=True)


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


def render_objects(project: AnyProject, *, service_monitor: bool, what_if: bool) -> Objects:
    """Render the Kubernetes objects of a project's plan."""
    from jellybean_k8s import render as render_plan

    require_servable(project)
    return render_plan(deployed_project(project, service_monitor=service_monitor, what_if=what_if))
