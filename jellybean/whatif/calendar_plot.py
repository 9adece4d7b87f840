"""Draw plans by time: rates, and cost beside that of one plan for the highest rates. Write the plans to a folder."""

from __future__ import annotations

from pathlib import Path

from jellybean.display import formats
from jellybean.display.pictures import (
    INK,
    LINE,
    SERIES,
    STYLE,
    SURFACE,
    load_matplotlib,
    require_picture,
    save_figure,
    span_ticks,
)
from jellybean.planning.plan_file import write_plan_file
from jellybean.whatif.calendar import Calendar
from jellybean_solver import to_document


def save_calendar_plot(found: Calendar, path: Path) -> None:
    """Two panels over time. JellyBeanError for a format other than .svg, .png and .pdf."""
    require_picture(path)
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    unit_s, unit = formats.span_unit(found.file.trace.length_s)
    borders_s = [*(one.period.start_s for one in found.periods), found.periods[-1].period.end_s]
    edges = [(found.file.origin_s + border_s) / unit_s for border_s in borders_s]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 4.8), facecolor=SURFACE, layout="constrained")
        rates, costs = figure.subplots(2, 1, sharex=True)
        for color, name in zip(SERIES, found.periods[0].period.rates_per_s, strict=False):
            values = [one.period.rates_per_s[name] for one in found.periods]
            rates.stairs(values, edges, color=color, label=name, linewidth=1.8)
        rates.set_title("requests per second, at most", loc="left", fontsize=10.5, color=INK, fontweight="bold")
        hourly = [one.cost_usd / one.period.hours for one in found.periods]
        costs.stairs(hourly, edges, color=SERIES[0], fill=True, alpha=0.35, label="plans by time")
        mean = found.peak_usd / sum(one.period.hours for one in found.periods)
        costs.axhline(
            mean, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label="one plan for the highest rates, on average"
        )
        costs.set_title("USD per hour", loc="left", fontsize=10.5, color=INK, fontweight="bold")
        costs.set_xlabel(unit)
        span_ticks(costs.xaxis)
        for axes in (rates, costs):
            axes.set_ylim(bottom=0)
            axes.set_xlim(edges[0], edges[-1])
            axes.grid(axis="y", color=LINE, linewidth=0.6, alpha=0.7)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        rates.legend(frameon=False, fontsize=8, loc="upper left")
        costs.set_ylim(top=1.25 * max(*hourly, mean))
        costs.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
        save_figure(figure, path)


def save_calendar_plans(found: Calendar, folder: Path) -> int:
    """Write each different plan as HASH.json; returns their number."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = [to_document(plan) for plan in {one.options: one.plan for one in found.periods}.values()]
    for document in documents:
        write_plan_file(folder / f"{str(document['hash'])[:12]}.json", document)
    return len(documents)
