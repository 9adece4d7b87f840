"""Interleaved 1F1B: several stages per device (Narayanan et al. 2021, Megatron-LM, section 2.2)."""

from __future__ import annotations

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.schedule import (
    Schedule,
    one_forward_one_backward,
    round_robin_stages,
    synchronous_schedule,
)


def check_interleaved(devices: int, microbatches: int) -> None:
    """SolverError unless the devices divide the micro-batches."""
    if microbatches % devices:
        raise SolverError(
            f"interleaved needs a number of micro-batches that {devices} devices divide, not {microbatches}"
        )


def interleaved(devices: int, microbatches: int, chunks: int = 2) -> Schedule:
    """1F1B on v = `chunks` stages per device, in rounds of D = `devices` micro-batches through each of them.

    Device s warms up with 2 (D - 1 - s) + (v - 1) D + 1 forwards. SolverError unless D divides the micro-batches.
    """
    check_interleaved(devices, microbatches)
    compute_actions = []
    for device in range(devices):
        forwards = [_action(ActionKind.FORWARD, device, devices, chunks, k) for k in range(chunks * microbatches)]
        backwards = [_action(ActionKind.BACKWARD, device, devices, chunks, k) for k in range(chunks * microbatches)]
        warm_up = 2 * (devices - 1 - device) + (chunks - 1) * devices + 1
        compute_actions.append(one_forward_one_backward(forwards, backwards, min(warm_up, chunks * microbatches)))
    return synchronous_schedule("interleaved", microbatches, round_robin_stages(devices, chunks), compute_actions)


def _action(kind: ActionKind, device: int, devices: int, chunks: int, number: int) -> Action:
    """The device's `number`-th forward or backward (from 0), in rounds of `devices` micro-batches per chunk."""
    rounds, within = divmod(number, devices * chunks)
    chunk, index = divmod(within, devices)
    chunk = chunk if kind is ActionKind.FORWARD else chunks - 1 - chunk
    return Action(kind, chunk * devices + device, rounds * devices + index)
