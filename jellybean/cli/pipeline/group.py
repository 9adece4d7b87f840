"""The Typer group of the `pipeline` commands."""

from __future__ import annotations

import typer

from jellybean.cli.app import app

pipeline = typer.Typer(
    name="pipeline",
    help="Pipeline parallelism: estimate memory and FLOPs; partition a model into stages; simulate, draw and compare "
    "schedules.",
    no_args_is_help=True,
)
app.add_typer(pipeline)

MAX_ACTIONS = 5_000_000  # limit of a schedule's actions; their times would not fit into memory
