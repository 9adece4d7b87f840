"""pipeline wpipe: memory and time of WPipe's model- by data-parallel sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from jellybean.cli.app import Json, example
from jellybean.cli.console import out, print_json
from jellybean.cli.pipeline.group import pipeline
from jellybean.display.formats import decimal_size, duration
from jellybean_solver.pipeline import WpipeSize, fastest_size, wpipe_sizes

MAX_WORKERS = 1024


@pipeline.command(
    "wpipe",
    epilog=example(
        "jellybean pipeline wpipe vgg16.txt --workers 8 --bandwidth 1.25e9",
        "jellybean pipeline wpipe vgg16.txt --workers 8 --batches 8,32,128 --memory 12e9 --states 2",
    ),
)
def wpipe_command(
    profile: Annotated[
        Path,
        typer.Argument(metavar="PROFILE", help="Layers with their costs, as `pipeline profile --out` writes them."),
    ],
    workers: Annotated[int, typer.Option(min=1, max=MAX_WORKERS, help="Workers, M x N.")] = 8,
    batches: Annotated[
        str, typer.Option(metavar="B[,B]", help="Batches per update, in micro-batches of the profile.")
    ] = "8,16,32,64",
    bandwidth: Annotated[float, typer.Option(metavar="B", help="Bytes per second between workers.")] = 1e9,
    memory: Annotated[
        float | None, typer.Option(metavar="BYTES", help="Memory of a worker; unlimited by default.")
    ] = None,
    states: Annotated[
        float, typer.Option(min=0, help="Optimizer state per byte of parameters: momentum 1, Adam 2.")
    ] = 0.0,
    json: Json = False,
) -> None:
    """Choose WPipe's M:N, workers in a pipeline by pipelines, with the memory of each by batch size."""
    from jellybean.pipeline.profile_file import read_profile

    counts = _batches(batches)
    graph = read_profile(profile)
    by_batch = {count: wpipe_sizes(graph, workers, count, bandwidth, states) for count in counts}
    chosen = {count: fastest_size(sizes, memory) for count, sizes in by_batch.items()}
    if json:
        print_json([_record(one, one == chosen[count]) for count, sizes in by_batch.items() for one in sizes])
        return
    out.print(_table(by_batch, chosen, workers))
    for count, best in chosen.items():
        text = "nothing fits into the memory" if best is None else f"M:N = {best.devices}:{best.replicas}"
        out.print(f"batch {count:g}: {text}", soft_wrap=True)


def _batches(text: str) -> list[float]:
    try:
        counts = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"--batches {text}: write numbers, such as 8,16") from error
    if not all(0 < count < 1e9 for count in counts):
        raise typer.BadParameter(f"--batches {text}: batches must be positive")
    return counts


def _table(by_batch: dict[float, list[WpipeSize]], chosen: dict[float, WpipeSize | None], workers: int) -> Table:
    """One row per M:N: memory of the fullest worker and time of an update for each batch; the chosen one is marked."""
    title = f"WPipe on {workers} workers: memory of a worker, time of an update (* the choice)"
    table = Table("M:N", *(f"batch {count:g}" for count in by_batch), title=title, title_justify="left")
    for row in zip(*by_batch.values(), strict=True):
        cells = [
            f"{decimal_size(one.memory_bytes)}, {duration(one.update_s)}{' *' * (one == chosen[one.microbatches])}"
            for one in row
        ]
        table.add_row(f"{row[0].devices}:{row[0].replicas}", *cells)
    return table


def _record(one: WpipeSize, chosen: bool) -> dict[str, Any]:
    return {
        "model_parallel": one.devices,
        "data_parallel": one.replicas,
        "batch": one.microbatches,
        "memory_bytes": one.memory_bytes,
        "update_s": one.update_s,
        "chosen": chosen,
    }
