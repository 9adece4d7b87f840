"""pipeline tensor: tensor or data parallelism for a linear layer, by batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Json, checked_picture, example
from jellybean.cli.console import out, print_json, say
from jellybean.cli.pipeline.group import pipeline
from jellybean_solver.pipeline import LinearLayer

MAX_COUNT = 1_000_000_000


@pipeline.command(
    "tensor",
    epilog=example(
        "jellybean pipeline tensor --in 4096 --out 4096 --devices 2",
        "jellybean pipeline tensor --in 1024 --out 4096 --devices 8 --batch 512 --plot layer.svg",
    ),
)
def tensor_command(
    inputs: Annotated[int, typer.Option("--in", min=1, max=MAX_COUNT, help="Inputs of the layer (Cin).")],
    outputs: Annotated[int, typer.Option("--out", min=1, max=MAX_COUNT, help="Outputs of the layer (Cout).")],
    devices: Annotated[int, typer.Option(min=2, max=MAX_COUNT, help="Devices that share the layer or the batch.")] = 2,
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_COUNT, help="A batch to answer for: rows (samples, or tokens) over all devices."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture over batch sizes (.svg, .png, .pdf).")
    ] = None,
    json: Json = False,
) -> None:
    """Compare tensor with data parallelism for a linear layer: which sends least, and from which batch size on."""
    from jellybean.pipeline.layer_parallelism.linear import LinearComparison

    if plot is not None:
        checked_picture(plot)
    comparison = LinearComparison(LinearLayer(inputs, outputs), devices, batch)
    if plot is not None:
        comparison.save_plot(plot)
        say(f"wrote {plot}")
    if json:
        print_json(comparison.to_json())
        return
    out.print(comparison.table())
    note = "bytes in float32 that each device sends per step, forward and backward, by ring collectives; no bias"
    out.print(note, style="dim", soft_wrap=True)
