"""Every schedule by its name. A new one is a generator in a file here and a line in `SCHEDULES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.schedule import Schedule, at_least
from jellybean_solver.pipeline.schedules.asynchronous import pipedream, pipedream_2bw, pipedream_vertical, wpipe
from jellybean_solver.pipeline.schedules.chimera import chimera
from jellybean_solver.pipeline.schedules.interleaved import interleaved
from jellybean_solver.pipeline.schedules.synchronous import dapple, gpipe, gpipe_grouped, naive, one_f_one_b
from jellybean_solver.pipeline.schedules.zero_bubble import zb_h1, zb_v


@dataclass(frozen=True, slots=True)
class Recipe:
    """A generator. `chunks`: stages per device, copies included; None where the user says."""

    make: Callable[..., Schedule]
    chunks: int | None
    about: str


SCHEDULES = {
    "naive": Recipe(naive, 1, "one device at a time"),
    "gpipe": Recipe(gpipe, 1, "all forwards, then all backwards"),
    "gpipe-grouped": Recipe(gpipe_grouped, 2, "GPipe on two groups of stages"),
    "1f1b": Recipe(one_f_one_b, 1, "one forward, one backward; PipeDream-flush"),
    "dapple": Recipe(dapple, 1, "early backward"),
    "interleaved": Recipe(interleaved, None, "1F1B on several stages per device"),
    "chimera": Recipe(chimera, 2, "two pipelines in opposite directions"),
    "pipedream": Recipe(pipedream, 1, "no flush, weight stashing"),
    "pipedream-vertical": Recipe(pipedream_vertical, 1, "PipeDream with vertical sync"),
    "pipedream-2bw": Recipe(pipedream_2bw, 1, "no flush, two weight versions"),
    "wpipe": Recipe(wpipe, 2, "two groups of stages that update in turn"),
    "zb-h1": Recipe(zb_h1, 1, "weight gradients fill the gaps"),
    "zb-v": Recipe(zb_v, 2, "zero bubble, stages in a V"),
}


MOST_SLOTS = 8.0  # of a backward, in forwards: beyond that the order hardly changes, and finding it takes longer


def make_schedule(
    name: str, devices: int, microbatches: int, chunks: int | None = None, *, backward_ratio: float = 2.0
) -> Schedule:
    """The schedule of that name. SolverError with the reason where the paper allows no such sizes.

    `backward_ratio`: of the time of a backward to that of a forward, for orders that depend on it.
    """
    if name not in SCHEDULES:
        raise SolverError(f"no schedule is called {name}; there are {', '.join(SCHEDULES)}")
    at_least(name, "device", devices, 1)
    at_least(name, "micro-batch", microbatches, 1)
    recipe = SCHEDULES[name]
    if recipe.chunks is None:
        chunks = 2 if chunks is None else chunks
        at_least(name, "chunk", chunks, 1)
        return recipe.make(devices, microbatches, chunks)
    if chunks not in (None, recipe.chunks):
        raise SolverError(f"{name} has {recipe.chunks} stages per device, not {chunks}; leave the chunks out")
    if name == "chimera":
        return chimera(devices, microbatches, round(min(max(1.0, backward_ratio), MOST_SLOTS)))
    return recipe.make(devices, microbatches)
