"""Training: the runtime with sleeping stages, beside its ideal and torch's own."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks.registry import benchmark, print_table
from jellybean_solver.pipeline.schedules import SCHEDULES
from jellybean_solver.pipeline.simulate import Costs, bubble_fraction, simulate

if TYPE_CHECKING:
    from tests.integration.training.sleeping import Sleeping, Slept

ROUNDS, MICROBATCHES, UNBROKEN = 7, 8, 40


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
