"""Command diff: differences between two plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Json, app, example
from jellybean.cli.console import errors, print_json, print_texts, warn
from jellybean.cli.exit_status import EXIT_BAD_INPUT, EXIT_FAILURE
from jellybean.cli.failures import failure, text_of
from jellybean.cli.kubernetes.cluster import show_changes
from jellybean.cli.kubernetes.options import Context, Kubeconfig, Namespace
from jellybean.cli.times import CheckLimit, command_limit
from jellybean.display.terminal import BAD
from jellybean.errors import JellyBeanError
from jellybean.planning.altered_models import altered_models_text
from jellybean.planning.plan_file import RUNNING, PlanFile
from jellybean.report.plans.plan_diff_view import diff_json, diff_text, latency_changes
from jellybean_solver import Plan, plan_diff, work_limit

EXIT_DIFFERENT = EXIT_FAILURE  # as diff(1): 0 same, 1 different, 2 error


@app.command(
    epilog=example(
        "jellybean diff my-digits other-digits",
        "jellybean diff before.json my-digits --json",
        "jellybean diff my-digits running",
        "jellybean diff my-digits --cluster --context fleet --namespace digits",
    )
)
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A project with a plan.json, or a plan file.")],
    after: Annotated[
        Path | None,
        typer.Argument(metavar="[B]", help="Another one, or the word running: the plan that is served from A."),
    ] = None,
    json: Json = False,
    every_figure: Annotated[
        bool, typer.Option("--all", help="List every figure that differs, those of profiles included.")
    ] = False,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster", help="Compare with what is deployed on a cluster instead of B, as `deploy --dry-run`."
        ),
    ] = False,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    time_limit: CheckLimit = None,
) -> None:
    """Compare two plans: cost, latency, variants, workers, models to load. Exit status 0 same, 1 different, 2 error.

    Figures that profiles state are counted; --all lists them.
    """
    if cluster:
        if after is not None or json:
            raise typer.BadParameter("--cluster takes one project and cannot be combined with --json")
        show_changes(before, kubeconfig, context, namespace)
        return
    if after is None:
        raise typer.BadParameter("name a second plan, or give --cluster")
    try:
        one, two = _plan(before, after), _plan(after, before)
        with command_limit(time_limit):
            difference = plan_diff(one, two, limit=work_limit())
        notes = dict.fromkeys(filter(None, (_altered(before, after, one), _altered(after, before, two))))
    except JellyBeanError as error:
        if json:
            print_json(failure(error))
        errors.print(text_of(error), style=BAD, soft_wrap=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    if json:
        print_json(diff_json(difference))
    else:
        latencies = tuple(latency_changes(one, two))
        print_texts(diff_text(difference, str(before), str(after), latencies, every_figure=every_figure))
    for note in notes:
        warn(note)
    if difference.out_of_time:
        warn("the time limit ended the matching of workers: another pairing may load fewer models")
    if not difference.is_empty:
        raise typer.Exit(EXIT_DIFFERENT)


def _altered(path: Path, other: Path, plan: Plan) -> str:
    """The models of a plan that are other files in its project by now, as a sentence; empty if none is."""
    folder = other if str(path) == RUNNING else path
    return altered_models_text(folder, plan) if folder.is_dir() else ""


def _plan(path: Path, other: Path) -> Plan:
    """The plan in a plan file, in the plan.json of a project, even if the documents have changed since, or `running`.

    `running`: the plan that is served from the project `other`.
    """
    return PlanFile(other).named(str(path)).plan
