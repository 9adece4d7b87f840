"""render: a plan as Kubernetes objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jellybean.cli.app import Directory, Overrides, app, example, folder
from jellybean.cli.console import out
from jellybean.cli.current import plan_of
from jellybean.documents import load_project

if TYPE_CHECKING:
    from jellybean_k8s import Objects

ServiceMonitor = Annotated[
    bool, typer.Option("--service-monitor", help="Metrics by a ServiceMonitor, not by annotations.")
]


@app.command(
    epilog=example("jellybean render my-digits | kubectl apply -f -", "jellybean render my-digits --kustomize base")
)
def render(
    directory: Directory,
    overrides: Overrides = None,
    kustomize: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a kustomize base there instead of printing YAML.")
    ] = None,
    service_monitor: ServiceMonitor = False,
    resource: Annotated[
        bool, typer.Option("--resource", help="Print the project as a Workflow resource, for `jellybean operator`.")
    ] = False,
    role: Annotated[bool, typer.Option("--role", help="Print the Role of whoever deploys, and nothing else.")] = False,
) -> None:
    """Print the plan as Kubernetes objects; kubernetes.yaml says what they need beside it. Asks no cluster."""
    from jellybean_k8s import deployer_role, kustomize_base, to_yaml, yaml_documents

    if role:
        print(to_yaml(deployer_role()), end="")
        return
    if resource:
        print(to_yaml(_resource(directory, overrides)), end="")
        return
    if kustomize is not None:
        folder("--kustomize", kustomize)
    objects = rendered(directory, overrides, service_monitor=service_monitor)
    if kustomize is None:
        print(yaml_documents(objects), end="")
        return
    kustomize.mkdir(parents=True, exist_ok=True)
    for name, text in kustomize_base(objects).items():
        (kustomize / name).write_text(text, encoding="utf-8")
    out.print(f"wrote {len(objects)} objects to {kustomize}", soft_wrap=True)


def _resource(directory: Path, overrides: list[str] | None) -> dict[str, Any]:
    from jellybean.documents.kubernetes import load_kubernetes
    from jellybean.operator.resource import to_resource

    project = load_project(directory, overrides or ())
    return to_resource(project, load_kubernetes(project.directory))


def rendered(directory: Path, overrides: list[str] | None, *, service_monitor: bool) -> Objects:
    """The objects of a project's plan."""
    from jellybean.documents.kubernetes import load_settings
    from jellybean_k8s import render as objects_of

    project = load_project(directory, overrides or ())
    settings = load_settings(project.directory)
    return objects_of(plan_of(project), settings, service_monitor=service_monitor)
