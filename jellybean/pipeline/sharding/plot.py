"""Draws which part of the samples and of the weights each device of a stage has."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jellybean.display import formats
from jellybean.display.pictures import (
    INK,
    LINE,
    SOFT,
    STYLE,
    SUNKEN,
    SURFACE,
    TINTS,
    load_matplotlib,
    require_picture,
    save_figure,
)
from jellybean.errors import JellyBeanError
from jellybean.pipeline.sharding.layer_groups import LayerGroup, layer_groups
from jellybean_solver.pipeline import LayerGraph, Partition

MAX_GROUPS = 60  # columns of the picture
BATCH_WIDTH, GAP, SIDE = 0.35, 0.12, 1.0  # of the batch, between it and the weights, of the weights
LABEL_PT, ROWS_PT = 6.5, 60.0  # size of the devices' numbers; sum of the sizes of numbers below each other
LABELLED = 16  # parts of a square in which the devices' numbers can be read


def save_sharding(graph: LayerGraph, partition: Partition, path: Path) -> None:
    """Draw, per group of layers, the batch (cut by samples) and the weights (rows x columns) with the devices' numbers.

    JellyBeanError for a format other than .svg, .png and .pdf, or if no layer is split.
    """
    require_picture(path)
    groups = [(number, group) for number, stage in enumerate(partition.stages) for group in layer_groups(graph, stage)]
    if not groups:
        raise JellyBeanError("only a plan with --objective alpa splits layers: there is nothing to draw")
    if len(groups) > MAX_GROUPS:
        raise JellyBeanError(f"{len(groups)} groups of layers are too many to draw; at most {MAX_GROUPS} can be read")
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    rows = [[group for number, group in groups if number == stage] for stage in range(len(partition.stages))]
    with matplotlib.rc_context(STYLE):
        width = max(map(len, rows))
        figure = Figure(figsize=(max(6.0, 1.3 + 1.75 * width), 0.7 + 1.75 * len(rows)), facecolor=SURFACE)
        axes = figure.subplots(len(rows), width, squeeze=False)
        for number, stage_groups in enumerate(rows):
            first = sum(stage.replicas for stage in partition.stages[:number])
            for place, cell in enumerate(axes[number]):
                cell.set_axis_off()
                if place < len(stage_groups):
                    _draw_group(cell, stage_groups[place], first)
            axes[number][0].text(-0.25, SIDE / 2, f"stage {number}", rotation=90, va="center", color=INK, fontsize=9)
        figure.suptitle(
            f"{formats.duration(partition.objective_s)} per iteration; batch (samples) and weights (rows x columns) "
            "by device",
            x=0.02, ha="left", fontsize=9.5, color=INK,
        )  # fmt: skip
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.2 / figure.get_figheight()))
        save_figure(figure, path)


def _draw_group(axes: Any, group: LayerGroup, first: int) -> None:
    """One group: its batch on the left, its weights on the right. `first`: number of the stage's first device."""
    axes.set_xlim(-0.3, BATCH_WIDTH + GAP + SIDE + 0.02)
    axes.set_ylim(SIDE + 0.02, -0.02)
    axes.set_aspect("equal")
    _tiles(axes, group, first, (0.0, BATCH_WIDTH), ("sample", None))
    _tiles(axes, group, first, (BATCH_WIDTH + GAP, SIDE), ("in", "out"))
    name = group.title if len(group.title) <= 30 else f"{group.title[:14]}...{group.title[-13:]}"
    axes.set_title(f"{name}\n{group.words}", fontsize=7, color=SOFT, loc="left")


def _tiles(
    axes: Any, group: LayerGroup, first: int, place: tuple[float, float], dimensions: tuple[str, str | None]
) -> None:
    """A tensor cut into parts, each with the numbers of the devices that have it."""
    from matplotlib.patches import Rectangle

    devices: dict[tuple[int, int], list[int]] = {}
    count = math.prod(group.axes)
    for device in range(count):
        row, column = (group.part_of(device, name) if name else 0 for name in dimensions)
        devices.setdefault((row, column), []).append(device)
    rows, columns = (group.parts(name) if name else 1 for name in dimensions)
    height, width = SIDE / rows, place[1] / columns
    for (row, column), holders in devices.items():
        colour = TINTS[holders[0] % len(TINTS)] if len(holders) < count or count == 1 else SUNKEN
        corner = (place[0] + column * width, row * height)
        axes.add_patch(Rectangle(corner, width, height, facecolor=colour, edgecolor=LINE, linewidth=0.8))
        if rows * columns <= LABELLED:
            label = _ranges([first + device for device in holders])
            centre = corner[0] + width / 2, corner[1] + height / 2
            axes.text(*centre, label, ha="center", va="center", fontsize=min(LABEL_PT, ROWS_PT / rows))


def _ranges(numbers: list[int]) -> str:
    """Numbers as text, with runs joined: 0-3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
