"""pipeline hybrid: traffic of data-parallel convolutions with tensor-parallel linear layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Json, checked_picture, example
from jellybean.cli.console import out, print_json, say
from jellybean.cli.pipeline.group import pipeline
from jellybean_solver.pipeline import PUBLISHED_NETWORKS, LayerKind, LayerStrategy

MAX_COUNT = 1_000_000_000


@pipeline.command(
    "hybrid",
    epilog=example(
        "jellybean pipeline hybrid alexnet --workers 4 --batch 32",
        "jellybean pipeline hybrid vgg16 --workers 4 --batch 64 --plot vgg16.svg",
        "jellybean pipeline hybrid vgg16 --workers 8 --batch 16 --linear data --json",
    ),
)
def hybrid_command(
    network: Annotated[
        str, typer.Argument(metavar="MODEL", help=f"A published network: {', '.join(PUBLISHED_NETWORKS)}.")
    ],
    workers: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Workers that train it together.")] = 4,
    batch: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Samples of each worker per step.")] = 32,
    conv: Annotated[LayerStrategy, typer.Option(help="How convolutions are parallel.")] = LayerStrategy.DATA,
    linear: Annotated[
        LayerStrategy, typer.Option(help="How fully connected layers are parallel.")
    ] = LayerStrategy.TENSOR,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of the bytes by layer (.svg, .png, .pdf).")
    ] = None,
    json: Json = False,
) -> None:
    """Compare hybrid with data parallelism on a published network: bytes per worker and step, by layer."""
    from jellybean.pipeline.layer_parallelism.hybrid import HybridTraffic
    from jellybean.pipeline.layer_parallelism.hybrid_plot import save_hybrid

    if network not in PUBLISHED_NETWORKS:
        raise typer.BadParameter(f"unknown network {network}; there are {', '.join(PUBLISHED_NETWORKS)}")
    if plot is not None:
        checked_picture(plot)
    traffic = HybridTraffic(network, {LayerKind.CONV: conv, LayerKind.LINEAR: linear}, workers, batch)
    if plot is not None:
        save_hybrid(traffic, plot)
        say(f"wrote {plot}")
    if json:
        print_json(traffic.to_json())
        return
    out.print(traffic.table())
    for note in traffic.notes():
        out.print(note, style="dim", soft_wrap=True)
