"""Interference: while a part of a device is measured, processes on its other parts run the same model in a loop.

Workers at their planned load share the device all the time, so times beside resting neighbours would promise more than
a part of a device can do. MIG keeps parts apart in hardware, and functions run on the CPU: both have no neighbours.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection

from jellybean_agent.errors import AgentError, ModelError, describe_error
from jellybean_agent.execution.executor import Executor
from jellybean_agent.execution.python_code import PythonStep
from jellybean_agent.execution.session import OperatorCode
from jellybean_agent.measuring.timed_runs import RunInputs
from jellybean_agent.system.device import Device

_START_LIMIT_S = 300.0  # to start and load the model, as long as a worker may take
_STOP_LIMIT_S = 60.0  # to end the run that it is in; then it is killed


def neighbour_count(code: OperatorCode, device: Device) -> int:
    """Number of other parts of the device that are busy while a model is measured on one."""
    return 0 if device.share is None or isinstance(code, PythonStep) else device.share.neighbours


@contextlib.contextmanager
def busy_neighbours(
    code: OperatorCode, sha256: str, input_order: Mapping[str, str], device: Device, inputs: Sequence[RunInputs]
) -> Iterator[None]:
    """Keep the device's other parts busy with the model, on these inputs. ModelError if one cannot run it, or stops."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(neighbour_count(code, device)):
            own, other = context.Pipe()
            process = context.Process(
                target=_run_in_loop, args=(other, code, sha256, dict(input_order), device, inputs), daemon=True
            )
            # Ctrl-C, which a terminal sends to all, does not end it amid its imports; it ignores it once it runs.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            other.close()
            stack.callback(_end, process, own)
            started.append((process, own))
        for _, own in started:
            _require_running(own, device)
        yield
        if any(process.exitcode is not None for process, _ in started):
            raise ModelError(f"another part of device {device}, which was kept busy meanwhile: its process died")


def _require_running(neighbour: Connection, device: Device) -> None:
    """Wait until a neighbour has run the model once."""
    try:
        fault = neighbour.recv() if neighbour.poll(_START_LIMIT_S) else f"does not run after {_START_LIMIT_S:g} s"
    except EOFError:
        fault = "its process died"
    if fault:
        raise ModelError(f"another part of device {device}, which is kept busy meanwhile: {fault}")


def _end(process: multiprocessing.process.BaseProcess, neighbour: Connection) -> None:
    neighbour.close()
    process.join(_STOP_LIMIT_S)
    if process.exitcode is None:
        process.kill()
        process.join()


def _run_in_loop(
    parent: Connection,
    code: OperatorCode,
    sha256: str,
    input_order: Mapping[str, str],
    device: Device,
    inputs: Sequence[RunInputs],
) -> None:
    """A neighbour: says "" after its first run, or why there was none, and runs until the parent closes or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    try:
        executor = Executor(code, sha256, input_order, device=device)
        executor.run(inputs[0])
    except AgentError as error:
        parent.send(describe_error(error))
        return
    parent.send("")
    for one in itertools.cycle(inputs):
        if parent.poll():  # closed
            return
        executor.run(one)
