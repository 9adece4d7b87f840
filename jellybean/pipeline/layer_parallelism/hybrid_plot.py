"""Draws the bytes by layer of data and of tensor parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jellybean.display.formats import decimal_size
from jellybean.display.pictures import (
    INK,
    LINE,
    SERIES,
    SOFT,
    STYLE,
    SURFACE,
    load_matplotlib,
    log_sizes,
    require_picture,
    save_figure,
)
from jellybean.pipeline.layer_parallelism.hybrid import HybridTraffic
from jellybean_solver.pipeline import LayerStrategy

_COLOURS = {LayerStrategy.DATA: SERIES[0], LayerStrategy.TENSOR: SERIES[1]}
PALE = 0.28  # opacity of the strategy that is not used


def save_hybrid(traffic: HybridTraffic, path: Path) -> None:
    """Draw two bars per layer, data and tensor parallel, on a logarithmic axis; the one in use is in full colour.

    JellyBeanError for a format other than .svg, .png and .pdf.
    """
    require_picture(path)
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 1.4 + 0.34 * len(traffic.layers)), facecolor=SURFACE)
        axes = figure.subplots()
        _axes(axes, traffic)
        for offset, strategy, sizes in (
            (-0.19, LayerStrategy.DATA, traffic.data_bytes),
            (0.19, LayerStrategy.TENSOR, traffic.tensor_bytes),
        ):
            _bars(axes, traffic, strategy, sizes, offset)
        axes.set_title(traffic.title(), loc="left", fontsize=9.5, color=INK)
        _legend(figure)
        figure.tight_layout(rect=(0, 0.28 / figure.get_figheight(), 1, 1))
        save_figure(figure, path)


def _bars(axes: Any, traffic: HybridTraffic, strategy: LayerStrategy, sizes: tuple[float, ...], offset: float) -> None:
    start = axes.get_xlim()[0]  # the bar of a layer that sends nothing is empty
    for row, (layer, size_bytes) in enumerate(zip(traffic.layers, sizes, strict=True)):
        used = traffic.strategies[layer.kind] is strategy
        end = max(size_bytes, start)
        axes.barh(row + offset, end, 0.36, color=_COLOURS[strategy], alpha=1.0 if used else PALE)
        label = {"color": INK if used else SOFT, "fontsize": 7.5, "va": "center"}
        axes.annotate(decimal_size(size_bytes), (end, row + offset), (3, 0), textcoords="offset points", **label)


def _axes(axes: Any, traffic: HybridTraffic) -> None:
    sizes = [size for size in (*traffic.data_bytes, *traffic.tensor_bytes) if size > 0] or [1.0]
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 3, max(sizes) * 4)
    axes.set_ylim(len(traffic.layers) - 0.4, -0.6)
    axes.set_yticks(range(len(traffic.layers)), [layer.name for layer in traffic.layers])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", which="minor", length=0)
    log_sizes(axes.xaxis)
    axes.set_xlabel("bytes sent by each worker per step (logarithmic)")
    axes.grid(axis="x", color=LINE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(color=colour, alpha=alpha, label=f"{strategy} parallel{words}")
        for strategy, colour in _COLOURS.items()
        for alpha, words in ((1.0, ", in use"), (PALE, ", not in use"))
    ]
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.05, 0), ncols=4, frameon=False, fontsize=8)
