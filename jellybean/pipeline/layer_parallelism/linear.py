"""Data against tensor parallelism of a linear layer, over batch sizes: table, JSON and picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from jellybean.display.formats import decimal_size
from jellybean.display.pictures import (
    INK,
    LINE,
    SERIES,
    SOFT,
    STYLE,
    SURFACE,
    label_above,
    load_matplotlib,
    log_sizes,
    require_picture,
    save_figure,
)
from jellybean_solver.pipeline import (
    LinearLayer,
    LinearStrategy,
    data_from_batch,
    least_sending,
    sent_values,
)

VALUE_BYTES = 4  # float32
FACTOR_BELOW, FACTOR_ABOVE = 32, 8  # the batch sizes shown, as factors of the one from which data parallelism wins
_NAMES = {
    LinearStrategy.PARTITION_OUTPUT: "partition of the output",
    LinearStrategy.REDUCE_OUTPUT: "reduction of the output",
    LinearStrategy.DATA: "data parallel",
}
_LINES = {
    LinearStrategy.PARTITION_OUTPUT: (SERIES[1], "-"),
    LinearStrategy.REDUCE_OUTPUT: (SERIES[2], "--"),
    LinearStrategy.DATA: (SERIES[0], "-"),
}


@dataclass(frozen=True)
class LinearComparison:
    """The strategies for a layer on `devices`; `batch`: a size to answer for, in rows over all devices."""

    layer: LinearLayer
    devices: int
    batch: int | None = None

    @property
    def batches(self) -> list[int]:
        """Powers of two around the batch from which data parallelism sends least, that batch, and the given one."""
        turn = data_from_batch(self.layer)
        exponents = range((turn * FACTOR_ABOVE).bit_length())
        powers = {2**exponent for exponent in exponents if 2**exponent * FACTOR_BELOW >= turn}
        return sorted(powers | {turn} | ({self.batch} if self.batch else set()))

    def sent_bytes(self, strategy: LinearStrategy, batch: int) -> float:
        """Bytes that each device sends per step."""
        return sent_values(self.layer, strategy, self.devices, batch).total * VALUE_BYTES

    def best(self, batch: int) -> LinearStrategy:
        """The strategy that sends least."""
        return least_sending(self.layer, batch)

    def title(self) -> str:
        """The answer as a sentence."""
        turn = data_from_batch(self.layer)
        equal = self.layer.inputs == self.layer.outputs
        kind = "of either kind" if equal else f"by {_NAMES[self.best(1)]}"
        below = f"; below, tensor parallelism {kind}" if turn > 1 else ""
        text = (
            f"{self.layer.inputs:,} x {self.layer.outputs:,} on {self.devices:,} devices: from batch {turn:,} on data "
            f"parallelism sends least{below}"
        )
        if self.batch is None:
            return text
        best = self.best(self.batch)
        return f"{text}; batch {self.batch:,}: {_NAMES[best]}, {decimal_size(self.sent_bytes(best, self.batch))}"

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values; docs/pipelines.md lists the keys."""
        return {
            "in": self.layer.inputs,
            "out": self.layer.outputs,
            "devices": self.devices,
            "data_from_batch": data_from_batch(self.layer),
            "batch": None if self.batch is None else self._row_json(self.batch),
            "batches": [self._row_json(batch) for batch in self.batches],
        }

    def _row_json(self, batch: int) -> dict[str, Any]:
        row: dict[str, Any] = {"batch": batch, "least": self.best(batch).value}
        for strategy in LinearStrategy:
            sent = sent_values(self.layer, strategy, self.devices, batch)
            row[strategy.value] = {
                "forward_bytes": sent.forward * VALUE_BYTES,
                "backward_bytes": sent.backward * VALUE_BYTES,
                "total_bytes": sent.total * VALUE_BYTES,
            }
        return row

    def table(self) -> Table:
        """Table with one row per batch size: bytes of each strategy, and the one that sends least."""
        table = Table("batch", *_NAMES.values(), "least", title=self.title(), title_justify="left")
        for batch in self.batches:
            sizes = (decimal_size(self.sent_bytes(strategy, batch)) for strategy in LinearStrategy)
            style = "bold" if batch == self.batch else None
            table.add_row(f"{batch:,}", *sizes, _NAMES[self.best(batch)], style=style)
        return table

    def save_plot(self, path: Path) -> None:
        """Draw the bytes over the batch size, and the batch from which data parallelism sends least.

        JellyBeanError for a format other than .svg, .png and .pdf.
        """
        require_picture(path)
        matplotlib = load_matplotlib()
        from matplotlib.figure import Figure

        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(7.5, 4.3), facecolor=SURFACE)
            axes = figure.subplots()
            for strategy, (colour, dashes) in _LINES.items():
                sizes = [self.sent_bytes(strategy, batch) for batch in self.batches]
                axes.plot(self.batches, sizes, color=colour, linestyle=dashes, linewidth=1.8, label=_NAMES[strategy])
            _scales(axes)
            turn = data_from_batch(self.layer)
            axes.axvline(turn, color=LINE, linewidth=5, zorder=0)
            labels = [(float(turn), f"{turn:,}")]
            if self.batch is not None:
                axes.axvline(self.batch, color=SOFT, linewidth=0.8, linestyle=":", zorder=0)
                labels.append((float(self.batch), f"batch {self.batch:,}"))
            axes.set_title(self.title().replace("; ", "\n"), loc="left", fontsize=8.5, color=INK, pad=26)
            figure.legend(loc="lower left", bbox_to_anchor=(0.08, 0), ncols=3, frameon=False, fontsize=8)
            figure.tight_layout(rect=(0, 0.07, 1, 1))
            label_above(axes, labels)
            save_figure(figure, path)


def _scales(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    log_sizes(axes.yaxis)
    axes.set_xlabel("batch, rows over all devices")
    axes.set_ylabel("sent by each device per step")
    axes.grid(axis="y", color=LINE, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
