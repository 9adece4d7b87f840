"""Plans with unlike replica counts on real processes, whose stages sleep: idle time beside the simulator's."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic
from jellybean_solver.pipeline import bubble_fraction, simulate

if TYPE_CHECKING:
    from tests.integration.training.sleeping import Sleeping, Slept

PLANS = ((2, 1), (3, 1), (2, 2), (1, 2, 1))
ROUNDS, MICROBATCHES = 5, {"1f1b": 12, "pipedream": 30}
COLUMNS = ("plan", "schedule", "speed-up (ideal)", "idle (simulated)", "difference in points")


@benchmark
def planned_stages(smoke: bool) -> Result:
    """Idle time of plans with unlike replica counts, measured and simulated."""
    from tests.integration.training.ranks import run_ranks
    from tests.integration.training.sleeping import Sleeping, Urgent, awake

    rounds = 1 if smoke else ROUNDS
    cases = [
        Sleeping(name, sum(replicas), count, rounds, replicas=replicas)
        for replicas in (PLANS[:1] if smoke else PLANS)
        for name, count in MICROBATCHES.items()
    ]
    processes = max(case.devices for case in cases)
    with awake():
        urgent, *slept = run_ranks(processes, [Urgent(), *cases], seconds=3000)
    rows = [_row(case, ranks) for case, ranks in zip(cases, slept, strict=True)]
    where = "at real-time priority" if all(urgent) else "at the priority of everything else"
    return Result(
        title="Plans with unlike replica counts",
        topic=Topic.TRAINING,
        method="A stage of r replicas sleeps r x 20 ms forward and r x 40 ms backward, on one process per replica; "
        f"{MICROBATCHES['1f1b']} micro-batches with a flush (1f1b), {MICROBATCHES['pipedream']} without one; medians "
        f"of {rounds} rounds. The cores are kept awake.",
        reference="the idle share that the simulator predicts, without a flush in the steady state; the speed-up over "
        "one device without any overhead.",
        tables=(Table.of(COLUMNS, rows, f"3 and 4 processes {where}"),),
    )


def _row(case: Sleeping, ranks: list[Slept | None]) -> tuple[str, ...]:
    from tests.integration.training.sleeping import measured_idle

    used = [own for own in ranks if own is not None]
    whole_s = median(max(own.whole_s[number] for own in used) for number in range(case.rounds))
    idle = median(measured_idle(case.schedule, used, number) for number in range(case.rounds))
    simulated = bubble_fraction(simulate(case.schedule, case.costs))
    return (
        "-".join(map(str, case.replicas)),
        case.name,
        f"{case.alone_s / whole_s:.2f} ({case.alone_s / case.ideal_s:.2f})",
        f"{idle:.1%} ({simulated:.1%})",
        f"{100 * (idle - simulated):.1f}",
    )
