"""diff: what changes from one plan to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Json, app, example
from jellybean.cli.console import EXIT_BAD_INPUT, EXIT_FAILURE, errors, out, print_json
from jellybean.cli.failures import failure, text_of
from jellybean.cli.kubernetes.cluster import Context, Kubeconfig, Namespace, show_changes
from jellybean.documents import require_folder
from jellybean.errors import JellyBeanError
from jellybean.planning.project_plan import load_plan, read_plan
from jellybean.report.plan_diff_view import diff_json, diff_text
from jellybean_solver import Plan, plan_diff

EXIT_DIFFERENT = EXIT_FAILURE  # as of `diff`: 0 same, 1 different, 2 trouble


@app.command(
    epilog=example(
        "jellybean diff my-digits other-digits",
        "jellybean diff before.json my-digits --json",
        "jellybean diff my-digits --cluster --context fleet --namespace digits",
    )
)
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A project with a plan.json, or a plan file.")],
    after: Annotated[Path | None, typer.Argument(metavar="[B]", help="Another one.")] = None,
    json: Json = False,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Instead of B: what a cluster has, as `deploy --dry-run` shows it."),
    ] = False,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Compare two plans: cost, variants, workers, models to load, traffic, figures. Exit status 0 same, 1 different."""
    if cluster:
        if after is not None or json:
            raise typer.BadParameter("--cluster goes with one project, and prints no JSON")
        show_changes(before, kubeconfig, context, namespace)
        return
    if after is None:
        raise typer.BadParameter("two plans are compared: name another, or give --cluster")
    try:
        found = plan_diff(_plan(before), _plan(after))
    except JellyBeanError as error:
        if json:
            print_json(failure(error))
        errors.print(text_of(error), style="red", soft_wrap=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    if json:
        print_json(diff_json(found))
    else:
        out.print(diff_text(found, str(before), str(after)))
    if not found.is_empty:
        raise typer.Exit(EXIT_DIFFERENT)


def _plan(path: Path) -> Plan:
    """The plan of a project as it was written, even where its documents have changed since; or of a file."""
    if path.suffix == ".json":
        return read_plan(path)
    require_folder(path)
    return load_plan(path)
