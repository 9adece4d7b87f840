"""pipeline collectives: traffic and time of the ways of summing gradients over workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Json, checked_picture, example
from jellybean.cli.console import out, print_json, say
from jellybean.cli.pipeline.group import pipeline
from jellybean_solver.pipeline import Duplex, Link

MAX_WORKERS = 512  # transfers are counted one by one, and grow with the square: 0.5 million for a ring of 512 workers
MOST = 1e18  # largest bytes, bandwidth and latency: larger ones are mistakes, and times would overflow


@pipeline.command(
    "collectives",
    epilog=example(
        "jellybean pipeline collectives --workers 4 --bytes 4e8 --bandwidth 1.25e9",
        "jellybean pipeline collectives --workers 6 --bytes 1e8 --bandwidth 1.25e8 --latency 1e-3 --duplex half --json",
        "jellybean pipeline collectives --workers 16 --bytes 4e8 --bandwidth 1.25e9 --latency 5e-5 --plot sums.svg",
    ),
)
def collectives_command(
    workers: Annotated[int, typer.Option(min=1, max=MAX_WORKERS, help="Workers that sum their gradients.")],
    size_bytes: Annotated[float, typer.Option("--bytes", metavar="M", help="Bytes of gradients of each worker.")],
    bandwidth: Annotated[float, typer.Option(metavar="B", help="Bytes per second of each link.")],
    latency: Annotated[float, typer.Option(metavar="SECONDS", help="Latency of a round.")] = 0.0,
    duplex: Annotated[
        Duplex, typer.Option(help="full: links send and receive at once, at B each; half: in turn.")
    ] = Duplex.FULL,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture over the number of workers (.svg, .png, .pdf).")
    ] = None,
    json: Json = False,
) -> None:
    """Compare all-reduces: total traffic, bottleneck, rounds and time of server, naive, ring, tree and butterfly."""
    from jellybean.pipeline.collectives.comparison import compare_ways, comparison_json, comparison_table
    from jellybean.pipeline.collectives.plot import save_comparison

    for option, value in (("--bytes", size_bytes), ("--bandwidth", bandwidth)):
        if not 1 <= value <= MOST:
            raise typer.BadParameter(f"{option} {value:g}: write a number from 1 to {MOST:g}, such as 4e8")
    if not 0 <= latency <= MOST:
        raise typer.BadParameter(f"--latency {latency:g}: write seconds from 0 to {MOST:g}, such as 5e-5")
    if plot is not None:
        checked_picture(plot)
    comparison = compare_ways(workers, size_bytes, Link(bandwidth, latency, duplex))
    if plot is not None:
        save_comparison(comparison, plot)
        say(f"wrote {plot}")
    if json:
        print_json(comparison_json(comparison))
        return
    out.print(comparison_table(comparison))
