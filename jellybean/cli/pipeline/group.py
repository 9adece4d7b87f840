"""The Typer group of the `pipeline` commands."""

from __future__ import annotations

from jellybean.cli.app import example, new_group

pipeline = new_group(
    "pipeline",
    example(
        "jellybean pipeline compare --devices 4 --microbatches 8",
        "jellybean pipeline draw --schedule 1f1b --devices 4 --microbatches 8",
        "jellybean pipeline plan resnet50.txt --workers 4 --bandwidth 1e9",
    ),
)

MAX_ACTIONS = 5_000_000  # limit of a schedule's actions; their times would not fit into memory
