"""Every schedule on a real training task, beside one device: statistical and hardware efficiency separately."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Picture, Result, Table, Topic
from jellybean_solver.pipeline import (
    SCHEDULES,
    ScheduleCosts,
    make_schedule,
    simulate,
)

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "training.svg"
ALONE = "one device"
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
    tables = []
    for model in ("conv",) if smoke else TARGET_ACCURACY:
        curves = learn(model, epochs)
        rows = [figures(name, own, TARGET_ACCURACY[model]) for name, own in curves.items()]
        target = f"{TARGET_ACCURACY[model]:.0f} %"
        tables.append(
            Table.of(("schedule", "accuracy", f"updates to {target}", "simulated time to it"), rows, NETS[model])
        )
        if not smoke and model == "conv":
            draw(curves, PICTURE)
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
        picture=Picture(PICTURE.name, "loss and accuracy by epoch, and simulated time of an epoch"),
    )


def draw(curves: LearningCurves, path: Path) -> None:
    """Loss and accuracy by epoch (statistical efficiency), simulated seconds per epoch (hardware efficiency)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    loss, accuracy, speed = figure.subplots(1, 3)
    for place, axes in enumerate((loss, accuracy)):
        for number, (name, own) in enumerate(curves.items()):
            style = "k-" if name == ALONE else ("--", "-.", ":")[number % 3]
            axes.plot(range(1, len(own) + 1), [epoch[place] for epoch in own], style, label=name, linewidth=1.2)
        axes.set_xlabel("epoch")
    loss.set_yscale("log")
    loss.set_title("loss: statistical efficiency", fontsize=10)
    accuracy.set_title("accuracy in %: statistical efficiency", fontsize=10)
    accuracy.legend(fontsize=7, ncols=2)
    names = list(curves)
    speed.barh(names, [epoch_cost(name).simulated_s for name in names], color="0.6")
    speed.invert_yaxis()
    speed.tick_params(labelsize=8)
    speed.set_title("simulated s of an epoch: hardware efficiency", fontsize=10)
    figure.savefig(path, metadata={"Date": None})
