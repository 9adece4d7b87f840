"""Training: the runtime with sleeping stages beside its ideal and torch's own, and every schedule on one task."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.registry import benchmark, print_table
from jellybean_solver.pipeline.schedules import SCHEDULES
from jellybean_solver.pipeline.simulate import Costs, simulate

ROUNDS, MICROBATCHES, UNBROKEN = 7, 8, 40
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "training.svg"


@benchmark
def sleeping(smoke: bool) -> None:
    """Speed-ups over one device, of the same stages that sleep in place of computing."""
    from tests.integration.training.ranks import run_ranks
    from tests.integration.training.sleeping import BACKWARD_S, FORWARD_S, NO_FLUSH, TORCH_HAS, Sleeping, TorchSleeping

    rounds = 1 if smoke else ROUNDS
    for devices in (2,) if smoke else (2, 4):
        cases: list[Any] = []
        for _ in range(rounds):  # one after the other, so that a slow moment of the machine meets both
            for name in SCHEDULES:
                cases.append(Sleeping(name, devices, UNBROKEN if name in NO_FLUSH else MICROBATCHES))
                if name in TORCH_HAS:
                    cases.append(TorchSleeping(name, devices, MICROBATCHES))
        told: dict[tuple[str, str], list[float]] = {}
        for case, ranks in zip(cases, run_ranks(devices, cases, seconds=3000), strict=True):
            alone_s = case.microbatches * devices * (FORWARD_S + BACKWARD_S)
            own = isinstance(case, Sleeping)
            took_s = max((one.whole_s if own else one)[0] for one in ranks)
            told.setdefault((case.name, "here" if own else "torch"), []).append(alone_s / took_s)
        rows = []
        for name in SCHEDULES:
            case = Sleeping(name, devices, UNBROKEN if name in NO_FLUSH else MICROBATCHES)
            costs = Costs(FORWARD_S / case.parts, BACKWARD_S / case.parts)
            ideal = case.microbatches * devices * (FORWARD_S + BACKWARD_S) / simulate(case.schedule, costs).makespan_s
            here, other = told[name, "here"], told.get((name, "torch"))
            ratios = [one / two for one, two in zip(here, other, strict=True)] if other else []
            rows.append(
                (
                    name,
                    f"{median(here):.2f}",
                    f"{ideal:.2f}",
                    f"{median(here) / ideal:.1%}",
                    f"{median(other):.2f}" if other else "",
                    f"{median(ratios):.3f}" if ratios else "",
                )
            )
        header = ("schedule", "speed-up", "ideal", "of the ideal", "torch's", "ratio to torch's")
        print_table(f"{devices} processes, stages that sleep 20 ms forward and 40 ms backward", header, rows)


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
