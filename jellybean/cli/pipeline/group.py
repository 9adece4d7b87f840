"""The Typer group of the `pipeline` commands."""

from __future__ import annotations

import typer

from jellybean.cli.app import Commands, app, example

pipeline = typer.Typer(
    cls=Commands,
    name="pipeline",
    help="Pipeline parallelism: estimate memory and FLOPs; partition a model into stages; simulate, draw and compare "
    "schedules.",
    epilog=example(
        "jellybean pipeline compare --devices 4 --microbatches 8",
        "jellybean pipeline draw --schedule 1f1b --devices 4 --microbatches 8",
        "jellybean pipeline plan resnet50.txt --workers 4 --bandwidth 1e9",
    ),
    no_args_is_help=True,
)
app.add_typer(pipeline)

MAX_ACTIONS = 5_000_000  # limit of a schedule's actions; their times would not fit into memory
