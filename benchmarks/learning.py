"""Every schedule on a real training task, beside one device: statistical and hardware efficiency separately."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Picture, Result, Table, Topic
from jellybean.display.pictures import (
    INK,
    LABEL_PT,
    PREDICTED,
    STYLE,
    SURFACE,
    bare,
    log_numbers,
    save_figure,
    series_style,
)
from jellybean_solver.pipeline import (
    SCHEDULES,
    ScheduleCosts,
    make_schedule,
    simulate,
)

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "training.svg"
ALONE = "one device"
SAME_CURVE = 0.05  # relative difference of curves that are one line; sums in another order change losses by 3 %
EPOCHS, DEVICES, BATCH, MICROBATCHES, ROWS = 10, 2, 32, 4, 1437
NETS = {"conv": "Convolutional network", "transformer": "Transformer"}
TARGET_ACCURACY = {"conv": 97.0, "transformer": 90.0}  # percent of the 360 test rows
FORWARD_S, BACKWARD_S = 0.02, 0.04  # simulated time of a micro-batch at one of two stages

LearningCurves = Mapping[str, Sequence[tuple[float, Any]]]  # schedule -> (loss, accuracy) of every epoch


@dataclass(frozen=True)
class EpochCost:
    """Cost of one epoch under a schedule: number of updates and simulated seconds; the same for every model."""

    updates: int
    simulated_s: float


def epoch_cost(name: str) -> EpochCost:
    """Cost of an epoch with equal stages and free communication. A single device runs all stages in turn."""
    iterations = -(-ROWS // BATCH)
    alone_s = (FORWARD_S + BACKWARD_S) * DEVICES
    if name == ALONE:
        return EpochCost(iterations, alone_s * MICROBATCHES * iterations)
    sample = make_schedule(name, DEVICES, MICROBATCHES)
    parts = sample.stages / DEVICES
    costs = ScheduleCosts(FORWARD_S / parts, BACKWARD_S / parts)
    if sample.flushes:
        schedule = make_schedule(name, DEVICES, MICROBATCHES, backward_ratio=BACKWARD_S / FORWARD_S)
        return EpochCost(iterations, simulate(schedule, costs).makespan_s * iterations)
    count = ROWS // (BATCH // MICROBATCHES) // sample.period * sample.period
    return EpochCost(count // sample.period, simulate(make_schedule(name, DEVICES, count), costs).makespan_s)


def figures(name: str, curves: Sequence[tuple[float, Any]], target_accuracy: float) -> tuple[str, ...]:
    """Table row of a schedule: final accuracy, updates and simulated time to the target accuracy."""
    own = epoch_cost(name)
    reached = next((number for number, (_, accuracy) in enumerate(curves, 1) if accuracy >= target_accuracy), None)
    if reached is None:
        return (name, f"{curves[-1][1]:.2f}", "not reached", "")
    return (name, f"{curves[-1][1]:.2f}", f"{reached * own.updates:,}", f"{reached * own.simulated_s:.0f} s")


def learn(model: str, epochs: int) -> LearningCurves:
    """Train with all schedules in real processes, and with plain torch on one device."""
    import torch

    from tests.integration.training.learning import Learn, one_device
    from tests.integration.training.ranks import run_ranks

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cases = [Learn(schedule, model, epochs, folder) for schedule in SCHEDULES]
        curves = dict(zip(SCHEDULES, (ranks[0] for ranks in run_ranks(DEVICES, cases, seconds=3000)), strict=True))
    return {ALONE: one_device(model, epochs), **curves}


@benchmark
def learning(smoke: bool) -> Result:
    """Accuracy, updates and simulated time of every schedule, for both models; and a plot of one."""
    epochs = 1 if smoke else EPOCHS
    tables, drawn = [], None
    for model in ("conv",) if smoke else TARGET_ACCURACY:
        curves = learn(model, epochs)
        rows = [figures(name, own, TARGET_ACCURACY[model]) for name, own in curves.items()]
        target = f"{TARGET_ACCURACY[model]:.0f} %"
        tables.append(
            Table.of(("schedule", "accuracy", f"updates to {target}", "simulated time to it"), rows, NETS[model])
        )
        if not smoke and model == "conv":
            draw(curves, PICTURE)
            drawn = {name: [list(epoch) for epoch in own] for name, own in curves.items()}
    return Result(
        title="Every schedule on one real task",
        topic=Topic.TRAINING,
        method=f"Both networks of `examples/pipeline` on scikit-learn's digits, {epochs} epochs on {DEVICES} CPU "
        "processes, "
        f"{BATCH} samples per update of a synchronous schedule. Accuracy is that of 360 test rows after the last "
        "epoch. Time is "
        f"the simulator's, with {1e3 * FORWARD_S:.0f} ms forward and {1e3 * BACKWARD_S:.0f} ms backward per "
        "micro-batch of a "
        "stage, so it shows the cost of a schedule's bubbles, whatever the machine.",
        reference="training on one device, and the other schedules.",
        tables=tuple(tables),
        notes=("Without a flush an update takes fewer samples, so there are more updates.",),
        picture=Picture(PICTURE.name, "loss and accuracy by epoch, and simulated time of an epoch", drawn),
    )


def draw(curves: LearningCurves, path: Path) -> None:
    """Loss and accuracy by epoch (statistical efficiency), simulated seconds per epoch (hardware efficiency).

    Schedules with the same curve are one line.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.5, 4.3), facecolor=SURFACE, layout="constrained")
        loss, accuracy, speed = figure.subplots(1, 3)
        for number, names in enumerate(_alike(curves)):
            for place, axes in enumerate((loss, accuracy)):
                values = [epoch[place] for epoch in curves[names[0]]]
                axes.plot(range(1, len(values) + 1), values, label=_label(names), linewidth=1.6, **series_style(number))
        loss.set_yscale("log")
        log_numbers(loss.yaxis)
        _panel(loss, "loss", "epoch")
        _panel(accuracy, "accuracy in %", "epoch")
        speed.barh([*curves], [epoch_cost(name).simulated_s for name in curves], color=PREDICTED, height=0.6)
        speed.invert_yaxis()
        speed.tick_params(axis="y", labelsize=LABEL_PT, length=0)
        _panel(speed, "simulated seconds of an epoch", "", grid="x")
        handles = accuracy.get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower left", ncols=5, frameon=False, fontsize=LABEL_PT)
        save_figure(figure, path)


def _panel(axes: Any, title: str, label: str, grid: Literal["x", "y"] = "y") -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(label)
    bare(axes, grid)


def _alike(curves: LearningCurves) -> list[list[str]]:
    """The schedules in groups that learn alike: losses and accuracies differ by less than `SAME_CURVE`."""
    groups: list[list[str]] = []
    for name, own in curves.items():
        values = [value for epoch in own for value in epoch]
        for group in groups:
            others = [value for epoch in curves[group[0]] for value in epoch]
            if all(math.isclose(one, other, rel_tol=SAME_CURVE) for one, other in zip(values, others, strict=True)):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _label(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} schedules"
