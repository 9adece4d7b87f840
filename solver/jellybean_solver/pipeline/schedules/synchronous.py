"""Synchronous schedules on one pipeline, one update per iteration: naive, GPipe, 1F1B, DAPPLE."""

from __future__ import annotations

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.schedule import (
    Schedule,
    one_forward_one_backward,
    require_at_least,
    round_robin_stages,
    synchronous_schedule,
)

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def naive(devices: int, microbatches: int) -> Schedule:
    """Inter-layer model parallelism: one micro-batch at a time, so one device computes at a time."""
    compute_actions = [
        [Action(kind, stage, microbatch) for microbatch in range(microbatches) for kind in (F, B)]
        for stage in range(devices)
    ]
    return synchronous_schedule("naive", microbatches, round_robin_stages(devices), compute_actions)


def gpipe(devices: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards in reverse order (GPipe, Huang et al. 2019, figure 2c)."""
    compute_actions = [
        [Action(F, stage, m) for m in range(microbatches)]
        + [Action(B, stage, m) for m in reversed(range(microbatches))]
        for stage in range(devices)
    ]
    return synchronous_schedule("gpipe", microbatches, round_robin_stages(devices), compute_actions)


def gpipe_grouped(devices: int, microbatches: int) -> Schedule:
    """GPipe with two groups of stages that run one after the other on each device (as WPipe, Yang et al. 2022).

    Needs at least as many micro-batches as devices, so that the second group never waits for the first.
    """
    require_at_least("gpipe-grouped", f"micro-batches on {devices} devices", microbatches, devices)
    order = range(microbatches)
    compute_actions = [
        [Action(F, stage, m) for stage in (device, device + devices) for m in order]
        + [Action(B, stage, m) for stage in (device + devices, device) for m in order]
        for device in range(devices)
    ]
    return synchronous_schedule("gpipe-grouped", microbatches, round_robin_stages(devices, 2), compute_actions)


def one_f_one_b(devices: int, microbatches: int) -> Schedule:
    """1F1B (PipeDream-flush, Narayanan et al. 2021): stage s of D warms up with D - s forwards."""
    return _early_backward("1f1b", microbatches, [devices - stage for stage in range(devices)])


def dapple(devices: int, microbatches: int, policy: str = "a") -> Schedule:
    """Early backward scheduling (DAPPLE, Fan et al. 2021, section 3.2).

    Stage s of D warms up with D - s forwards under policy a, and with 2 (D - s) - 1 under policy b, which hides
    communication that takes up to as long as computation, for about twice the activation memory.
    """
    if policy not in ("a", "b"):
        raise SolverError(f"dapple has the warm-up policies a and b, not {policy!r}")
    left = [devices - stage for stage in range(devices)]
    return _early_backward("dapple", microbatches, left if policy == "a" else [2 * stages - 1 for stages in left])


def _early_backward(name: str, microbatches: int, warm_ups: list[int]) -> Schedule:
    compute_actions = [
        one_forward_one_backward(
            [Action(F, stage, m) for m in range(microbatches)],
            [Action(B, stage, m) for m in range(microbatches)],
            min(warm_up, microbatches),
        )
        for stage, warm_up in enumerate(warm_ups)
    ]
    return synchronous_schedule(name, microbatches, round_robin_stages(len(warm_ups)), compute_actions)
