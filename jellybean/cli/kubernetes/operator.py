"""Command group operator: run the Kubernetes operator and print its custom resource definition."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from jellybean.cli.app import Json, example, new_group
from jellybean.cli.console import print_json
from jellybean.cli.kubernetes.options import Context, Kubeconfig, Namespace, connect_to

operator = new_group(
    "operator",
    example("jellybean operator crd | kubectl apply --server-side -f -", "jellybean operator run --all-namespaces"),
)


@operator.command(epilog=example("jellybean operator run -n digits", "jellybean operator run --all-namespaces"))
def run(
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    watch: Annotated[
        list[str] | None,
        typer.Option("--watch", help="Namespace to watch; --namespace by default. May be repeated."),
    ] = None,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", help="Watch all namespaces.")] = False,
    health_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port for liveness probes (/healthz), on all addresses.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port for Prometheus (/metrics), on all addresses.")
    ] = None,
    allow_patch: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-patch",
            metavar="RULE",
            help="Let resources ask for what the rule refuses, e.g. host-path or secret=NAME; any: for all. May be "
            "repeated (docs/security.md).",
        ),
    ] = None,
) -> None:
    """Run the operator: plan, deploy, re-plan and undeploy Workflow resources. Replicas elect a leader."""
    if everywhere and watch:
        raise typer.BadParameter("--watch and --all-namespaces exclude each other")
    import kopf  # noqa: F401  # before a cluster is looked for, as it may not be installed

    from jellybean.operator.permissions import parse_permissions

    try:
        permissions = parse_permissions(allow_patch or ())
    except ValueError as error:
        raise typer.BadParameter(f"--allow-patch: {error}") from error
    cluster = connect_to(kubeconfig, context, namespace)
    from jellybean.operator.run import run_operator
    from jellybean_agent import configure_logging

    configure_logging("operator")
    for name in ("kopf", "urllib3", "aiohttp"):
        logging.getLogger(name).setLevel(logging.WARNING)
    namespaces = () if everywhere else tuple(watch or [cluster.namespace])
    run_operator(cluster, namespaces, health_port=health_port, metrics_port=metrics_port, permissions=permissions)


@operator.command(epilog=example("jellybean operator crd | kubectl apply --server-side -f -"))
def crd(json: Json = False) -> None:
    """Print the CustomResourceDefinition of Workflow."""
    from jellybean.operator.resource import resource_definition
    from jellybean_k8s import to_yaml

    definition = resource_definition()
    print_json(definition) if json else print(to_yaml(definition), end="")
