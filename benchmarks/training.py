"""Training: the runtime with sleeping stages beside its ideal and torch's own, and every schedule on one task."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.registry import benchmark, print_table
from jellybean_solver.pipeline.schedules import SCHEDULES
from jellybean_solver.pipeline.simulate import Costs, bubble_fraction, simulate

if TYPE_CHECKING:
    from tests.integration.training.sleeping import Sleeping, Slept

ROUNDS, MICROBATCHES, UNBROKEN = 7, 8, 40
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "training.svg"


@benchmark
def sleeping(smoke: bool) -> None:
    """Speed-ups over one device, of the same stages that sleep in place of computing."""
    from tests.integration.training.ranks import run_ranks
    from tests.integration.training.sleeping import NO_FLUSH, TORCH_HAS, Sleeping, Urgent, awake

    for devices in (2,) if smoke else (2, 4):
        cases = [
            Sleeping(
                name,
                devices,
                UNBROKEN if name in NO_FLUSH else MICROBATCHES,
                1 if smoke else ROUNDS,
                beside_torch=name in TORCH_HAS,
            )
            for name in SCHEDULES
        ]
        with awake():
            urgent, *told = run_ranks(devices, [Urgent(), *cases], seconds=3000)
        rows = [_row(case, ranks) for case, ranks in zip(cases, told, strict=True)]
        where = "at real-time priority" if all(urgent) else "at the priority of everything else"
        header = ("schedule", "speed-up", "ideal", "of it", "torch's", "ratio to it", "idle", "simulated")
        print_table(f"{devices} processes {where}, stages that sleep 20 ms forward and 40 ms backward", header, rows)


def _row(case: Sleeping, ranks: list[Slept]) -> tuple[str, ...]:
    from tests.integration.training.sleeping import BACKWARD_S, FORWARD_S, measured_idle

    rounds = range(case.rounds)
    here = [max(own.whole_s[number] for own in ranks) for number in rounds]
    other = [max(own.torch_s[number] for own in ranks) for number in rounds] if case.beside_torch else []
    simulated = bubble_fraction(simulate(case.schedule, Costs(FORWARD_S, BACKWARD_S)))
    return (
        case.name,
        f"{case.alone_s / median(here):.2f}",
        f"{case.alone_s / case.ideal_s:.2f}",
        f"{case.ideal_s / median(here):.1%}",
        f"{case.alone_s / median(other):.2f}" if other else "",
        f"{median(two / one for one, two in zip(here, other, strict=True)):.3f}" if other else "",
        f"{median(measured_idle(case.schedule, ranks, number) for number in rounds):.1%}",
        f"{simulated:.1%}",
    )


@benchmark
def learning(smoke: bool) -> None:
    """Loss and accuracy by epoch of every schedule, beside one device; and the picture of them."""
    import torch

    from tests.integration.training.learning import DEVICES, Learn, one_device
    from tests.integration.training.ranks import run_ranks

    torch.set_num_threads(1)
    epochs, model = (1, "conv") if smoke else (10, "conv")
    with tempfile.TemporaryDirectory() as folder:
        cases = [Learn(schedule, model, epochs, folder) for schedule in SCHEDULES]
        told = dict(zip(SCHEDULES, (ranks[0] for ranks in run_ranks(DEVICES, cases, seconds=3000)), strict=True))
    told = {"one device": one_device(model, epochs), **told}
    rows = [(name, f"{own[-1][0]:.4f}", f"{own[-1][1]:.2f}") for name, own in told.items()]
    print_table(f"{model}, {epochs} epochs of scikit-learn's digits", ("schedule", "loss", "accuracy"), rows)
    if not smoke:
        _draw(told, PICTURE)


def _draw(told: dict[str, list[tuple[float, Any]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for place, what in enumerate(("loss", "accuracy in %")):
        axes = figure.add_subplot(1, 2, place + 1)
        for number, (name, own) in enumerate(told.items()):
            style = "k-" if name == "one device" else ("--", "-.", ":")[number % 3]
            axes.plot(range(1, len(own) + 1), [epoch[place] for epoch in own], style, label=name, linewidth=1.2)
        axes.set_xlabel("epoch")
        axes.set_ylabel(what)
    figure.axes[0].set_yscale("log")
    figure.axes[1].legend(fontsize=7, ncols=2)
    figure.savefig(path, metadata={"Date": None})
