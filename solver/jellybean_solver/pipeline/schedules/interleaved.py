"""Interleaved 1F1B: several stages per device (Narayanan et al. 2021, Megatron-LM, section 2.2)."""

from __future__ import annotations

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, Kind
from jellybean_solver.pipeline.schedule.schedule import Schedule, flushed, one_by_one, straight


def interleaved(devices: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Micro-batches go through a chunk D at a time; warm-up of 2 (D - 1 - s) + (v - 1) D + 1 forwards."""
    if microbatches % devices:
        raise SolverError(
            f"interleaved needs a number of micro-batches that {devices} devices divide, not {microbatches}"
        )
    computes = []
    for device in range(devices):
        forwards = [_action(Kind.FORWARD, device, devices, chunks, k) for k in range(chunks * microbatches)]
        backwards = [_action(Kind.BACKWARD, device, devices, chunks, k) for k in range(chunks * microbatches)]
        warm_up = 2 * (devices - 1 - device) + (chunks - 1) * devices + 1
        computes.append(one_by_one(forwards, backwards, min(warm_up, chunks * microbatches)))
    return flushed("interleaved", microbatches, straight(devices, chunks), computes)


def _action(kind: Kind, device: int, devices: int, chunks: int, number: int) -> Action:
    """The device's forward or backward of that number: rounds of D micro-batches through all its chunks."""
    rounds, within = divmod(number, devices * chunks)
    chunk, index = divmod(within, devices)
    chunk = chunk if kind is Kind.FORWARD else chunks - 1 - chunk
    return Action(kind, chunk * devices + device, rounds * devices + index)
