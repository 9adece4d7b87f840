"""All schedules by name. A new one is a generator in a module here and a line in `SCHEDULES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.schedule import Schedule, require_at_least
from jellybean_solver.pipeline.schedules.asynchronous import pipedream, pipedream_2bw, pipedream_vertical, wpipe
from jellybean_solver.pipeline.schedules.chimera import check_chimera, chimera
from jellybean_solver.pipeline.schedules.interleaved import check_interleaved, interleaved
from jellybean_solver.pipeline.schedules.synchronous import dapple, gpipe, gpipe_grouped, naive, one_f_one_b
from jellybean_solver.pipeline.schedules.zero_bubble import zb_h1, zb_v


@dataclass(frozen=True, slots=True)
class ScheduleGenerator:
    """A schedule generator. `chunks`: stages per device, replicas included; None if the user chooses.

    `check`: SolverError for (devices, micro-batches) on which it is not defined; None if it is on all.
    """

    make: Callable[..., Schedule]
    chunks: int | None
    description: str
    check: Callable[[int, int], None] | None = None


SCHEDULES = {
    "naive": ScheduleGenerator(naive, 1, "one device at a time"),
    "gpipe": ScheduleGenerator(gpipe, 1, "all forwards, then all backwards"),
    "gpipe-grouped": ScheduleGenerator(gpipe_grouped, 2, "GPipe on two groups of stages"),
    "1f1b": ScheduleGenerator(one_f_one_b, 1, "one forward, one backward; PipeDream-flush"),
    "dapple": ScheduleGenerator(dapple, 1, "early backward"),
    "interleaved": ScheduleGenerator(interleaved, None, "1F1B on several stages per device", check_interleaved),
    "chimera": ScheduleGenerator(chimera, 2, "two pipelines in opposite directions", check_chimera),
    "pipedream": ScheduleGenerator(pipedream, 1, "no flush, weight stashing"),
    "pipedream-vertical": ScheduleGenerator(pipedream_vertical, 1, "PipeDream with vertical sync"),
    "pipedream-2bw": ScheduleGenerator(pipedream_2bw, 1, "no flush, two weight versions"),
    "wpipe": ScheduleGenerator(wpipe, 2, "two groups of stages that update in turn"),
    "zb-h1": ScheduleGenerator(zb_h1, 1, "weight gradients fill the gaps"),
    "zb-v": ScheduleGenerator(zb_v, 2, "zero bubble, stages in a V"),
}


ONE_DEVICE_SCHEDULE = "1f1b"  # on one device all orders take the same time, and this one keeps the fewest activations
STEADY_ROUNDS = 12  # simulated rounds of a schedule without a flush, so that its warm-up and drain hardly count

# Longest backward that Chimera's order takes into account, as a multiple of a forward; with longer ones, the order
# hardly changes and takes longer to generate.
MAX_BACKWARD_SLOTS = 8.0


def check_schedule_sizes(name: str, devices: int, microbatches: int, chunks: int | None = None) -> None:
    """SolverError, with the reason, if `make_schedule` is not defined for these sizes; takes no time for large ones.

    Whether a schedule without a flush updates after these micro-batches is not checked.
    """
    if name not in SCHEDULES:
        raise SolverError(f"unknown schedule {name}; there are {', '.join(SCHEDULES)}")
    require_at_least(name, "device", devices, 1)
    require_at_least(name, "micro-batch", microbatches, 1)
    generator = SCHEDULES[name]
    if generator.chunks is None:
        require_at_least(name, "chunk", 1 if chunks is None else chunks, 1)
    elif chunks not in (None, generator.chunks):
        raise SolverError(f"{name} has {generator.chunks} stages per device, not {chunks}; leave out the chunks")
    if generator.check is not None:
        generator.check(devices, microbatches)


def make_schedule(
    name: str, devices: int, microbatches: int, chunks: int | None = None, *, backward_ratio: float = 2.0
) -> Schedule:
    """The schedule of that name. SolverError, with the reason, if it is not defined for these sizes.

    `backward_ratio`: time of a backward over that of a forward, for orders that depend on it (Chimera).
    """
    check_schedule_sizes(name, devices, microbatches, chunks)
    generator = SCHEDULES[name]
    if generator.chunks is None:
        return generator.make(devices, microbatches, 2 if chunks is None else chunks)
    if name == "chimera":
        return chimera(devices, microbatches, round(min(max(1.0, backward_ratio), MAX_BACKWARD_SLOTS)))
    return generator.make(devices, microbatches)
