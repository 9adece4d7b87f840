"""Training with stages that sleep, beside the schedule's ideal and torch.distributed.pipelining."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean_solver.pipeline import (
    SCHEDULES,
    ScheduleCosts,
    bubble_fraction,
    simulate,
)

if TYPE_CHECKING:
    from tests.integration.training.sleeping import Sleeping, Slept

ROUNDS, MICROBATCHES, UNBROKEN = 7, 8, 40
COLUMNS = ("schedule", "speed-up (ideal)", "of the ideal", "ratio to torch", "idle (simulated)")


@benchmark
def sleeping(smoke: bool) -> Result:
    """Speed-up over one device with stages that sleep instead of computing."""
    from tests.integration.training.ranks import run_ranks
    from tests.integration.training.sleeping import NO_FLUSH, TORCH_HAS, Sleeping, Urgent, awake

    rounds = 1 if smoke else ROUNDS
    tables = []
    for devices in (2,) if smoke else (2, 4):
        cases = [
            Sleeping(
                name, devices, UNBROKEN if name in NO_FLUSH else MICROBATCHES, rounds, beside_torch=name in TORCH_HAS
            )
            for name in SCHEDULES
        ]
        with awake():
            urgent, *told = run_ranks(devices, [Urgent(), *cases], seconds=3000)
        rows = [_row(case, ranks) for case, ranks in zip(cases, told, strict=True)]
        where = "at real-time priority" if all(urgent) else "at the priority of everything else"
        tables.append(Table.of(COLUMNS, rows, f"{devices} processes {where}"))
    return Result(
        title="Training throughput of stages that sleep",
        topic=Topic.TRAINING,
        method=f"Stages sleep 20 ms forward and 40 ms backward; {MICROBATCHES} micro-batches ({UNBROKEN} without a "
        "flush); "
        f"medians of {rounds} rounds, in turn with torch.distributed.pipelining where it has the schedule. The cores "
        "are kept "
        "awake.",
        reference="the schedule's ideal without any overhead, torch.distributed.pipelining's time over ours, and the "
        "idle "
        "share that the simulator predicts.",
        tables=tuple(tables),
    )


def _row(case: Sleeping, ranks: list[Slept]) -> tuple[str, ...]:
    from tests.integration.training.sleeping import BACKWARD_S, FORWARD_S, measured_idle

    rounds = range(case.rounds)
    here = [max(own.whole_s[number] for own in ranks) for number in rounds]
    other = [max(own.torch_s[number] for own in ranks) for number in rounds] if case.beside_torch else []
    idle = median(measured_idle(case.schedule, ranks, number) for number in rounds)
    simulated = bubble_fraction(simulate(case.schedule, ScheduleCosts(FORWARD_S, BACKWARD_S)))
    return (
        case.name,
        f"{case.alone_s / median(here):.2f} ({case.alone_s / case.ideal_s:.2f})",
        f"{100 * case.ideal_s / median(here):.1f} %",
        f"{median(two / one for one, two in zip(here, other, strict=True)):.3f}" if other else "",
        f"{100 * idle:.1f} % ({100 * simulated:.1f} %)",
    )
