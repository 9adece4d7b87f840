"""Schedules of one update per iteration on a straight pipeline: naive, GPipe, 1F1B, DAPPLE."""

from __future__ import annotations

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, Kind
from jellybean_solver.pipeline.schedule.schedule import Schedule, at_least, flushed, one_by_one, straight

F, B = Kind.FORWARD, Kind.BACKWARD


def naive(devices: int, microbatches: int) -> Schedule:
    """Inter-layer model parallelism: a micro-batch goes up and down before the next; one device at a time."""
    computes = [
        [Action(kind, stage, microbatch) for microbatch in range(microbatches) for kind in (F, B)]
        for stage in range(devices)
    ]
    return flushed("naive", microbatches, straight(devices), computes)


def gpipe(devices: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards, the last micro-batch first (Huang et al. 2019, figure 2c)."""
    computes = [
        [Action(F, stage, m) for m in range(microbatches)]
        + [Action(B, stage, m) for m in reversed(range(microbatches))]
        for stage in range(devices)
    ]
    return flushed("gpipe", microbatches, straight(devices), computes)


def gpipe_grouped(devices: int, microbatches: int) -> Schedule:
    """GPipe on two groups of stages per device, one after the other (grouping as in WPipe, Yang et al. 2022).

    Needs as many micro-batches as devices, so that group 1 need not wait for group 0.
    """
    at_least("gpipe-grouped", f"micro-batches on {devices} devices", microbatches, devices)
    order = range(microbatches)
    computes = [
        [Action(F, stage, m) for stage in (device, device + devices) for m in order]
        + [Action(B, stage, m) for stage in (device + devices, device) for m in order]
        for device in range(devices)
    ]
    return flushed("gpipe-grouped", microbatches, straight(devices, 2), computes)


def one_f_one_b(devices: int, microbatches: int) -> Schedule:
    """D - s forwards, then one backward and one forward in turn (PipeDream-flush, Narayanan et al. 2021)."""
    return _early_backward("1f1b", microbatches, [devices - stage for stage in range(devices)])


def dapple(devices: int, microbatches: int, policy: str = "a") -> Schedule:
    """Early backward scheduling (Fan et al. 2021, section 3.2).

    Policy a warms up with D - s forwards; policy b with 2 (D - s) - 1, which hides communication as long as a
    computation, for about twice the memory.
    """
    if policy not in ("a", "b"):
        raise SolverError(f"dapple has the warm-up policies a and b, not {policy!r}")
    left = [devices - stage for stage in range(devices)]
    return _early_backward("dapple", microbatches, left if policy == "a" else [2 * stages - 1 for stages in left])


def _early_backward(name: str, microbatches: int, warm_ups: list[int]) -> Schedule:
    computes = [
        one_by_one(
            [Action(F, stage, m) for m in range(microbatches)],
            [Action(B, stage, m) for m in range(microbatches)],
            min(warm_up, microbatches),
        )
        for stage, warm_up in enumerate(warm_ups)
    ]
    return flushed(name, microbatches, straight(len(warm_ups)), computes)
