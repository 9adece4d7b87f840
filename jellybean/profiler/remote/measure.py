"""Has several workers measure at once; what one has measured is kept whatever becomes of it and of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from jellybean.errors import InputError
from jellybean.profiler.errors import ProfileError
from jellybean.profiler.remote.rows import Rows
from jellybean.profiler.remote.worker_agent import WorkerLostError
from jellybean.profiler.remote.worker_part import WorkerPart
from jellybean_solver import OutOfTimeError, work_limit

Report = Callable[[float, str], None]  # seconds done since the last report, label


class WorkersError(ProfileError):
    """Not all workers measured all rows; says what became of each."""


class WorkersInputError(WorkersError, InputError):
    """Workers refused to measure for reasons that the user can change."""


def measure_on_workers(parts: Mapping[str, WorkerPart], rows: Rows, report: Report) -> None:
    """Measure the parts (worker type -> part) in parallel. WorkersError after all have ended, if one did not finish.

    OutOfTimeError at the time limit of the work, with what each worker has measured.
    """
    lock = threading.Lock()
    errors: dict[str, ProfileError] = {}

    def advance(label: str, seconds: float) -> None:
        with lock:
            report(seconds, label)

    def run(worker_type: str) -> None:
        try:
            for model in parts[worker_type].measured(advance):
                rows.add(worker_type, model)
        except ProfileError as error:
            errors[worker_type] = error

    with ThreadPoolExecutor(len(parts), thread_name_prefix="worker") as threads:
        try:
            running = [threads.submit(run, worker_type) for worker_type in parts]
            ended, going_on = wait(running, timeout=work_limit().left(), return_when=FIRST_EXCEPTION)
            for future in ended:  # an error that nobody expects ends the wait, too: it is no time limit
                future.result()
        finally:  # also after Ctrl-C: calls that go on would keep their threads
            for part in parts.values():
                part.agent.close()
    if going_on:
        states = (f"{_state(rows, worker_type)}" for worker_type in parts)
        raise OutOfTimeError(f"the time limit ended the measurements: {'; '.join(states)}")
    if errors:
        kind = WorkersInputError if all(isinstance(error, InputError) for error in errors.values()) else WorkersError
        raise kind("\n".join(_text(rows, worker_type, error) for worker_type, error in errors.items()))


def _text(rows: Rows, worker_type: str, error: ProfileError) -> str:
    lost = "the worker was lost; " if isinstance(error, WorkerLostError) else ""
    return f"{error}; {lost}{_state(rows, worker_type)}: the same command measures the others"


def _state(rows: Rows, worker_type: str) -> str:
    return f"{rows.done(worker_type)} of {rows.count(worker_type)} rows of {worker_type} are measured and kept"
