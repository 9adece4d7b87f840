"""`schedule` of training.yaml: its names, and the numbers of devices on which it is defined. Does not import torch."""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import AfterValidator

from jellybean.quantities import InvalidValueError, did_you_mean, quoted
from jellybean_solver import SolverError
from jellybean_solver.pipeline import SCHEDULES, check_schedule_sizes, make_schedule


class ScheduledRun(Protocol):
    """The settings of a document on which its schedule depends."""

    @property
    def schedule(self) -> str: ...
    @property
    def devices(self) -> int: ...
    @property
    def microbatches(self) -> int: ...
    @property
    def chunks(self) -> int | None: ...
    @property
    def parallel(self) -> str | None: ...
    @property
    def plan(self) -> str | None: ...
    @property
    def objective(self) -> str | None: ...


def _schedule(text: str) -> str:
    if text != "auto" and text not in SCHEDULES:
        hint = did_you_mean(text, SCHEDULES) or f"known schedules: auto, {', '.join(SCHEDULES)}"
        raise InvalidValueError(f"unknown schedule {quoted(text)}", hint)
    return text


ScheduleName = Annotated[str, AfterValidator(_schedule)]


def check_schedule(document: ScheduledRun) -> None:
    """InvalidValueError if the document names a schedule that takes no `chunks`, or is not defined on its devices.

    The latter not for a plan, an objective or `parallel: auto`, which decide on the devices later.
    """
    planned = document.plan or document.objective
    if document.chunks is not None and (planned or document.schedule not in ("auto", "interleaved")):
        other = "plans" if planned else document.schedule
        raise InvalidValueError(
            f"`chunks` is for `schedule: interleaved`, not for {other}",
            "remove it, or train by interleaved",
            keys=("chunks", "schedule", "plan", "objective"),
        )
    later = planned or document.parallel
    if document.schedule not in SCHEDULES or later:
        return
    chunks = document.chunks if SCHEDULES[document.schedule].chunks is None else None
    try:
        check_schedule_sizes(document.schedule, document.devices, document.microbatches, chunks)
    except SolverError as error:
        raise InvalidValueError(str(error), keys=("schedule", "devices", "microbatches", "chunks")) from error


def check_saved_within_epochs(schedule: str) -> None:
    """InvalidValueError if a schedule does not stop within an epoch, where a checkpoint could be written."""
    if schedule in SCHEDULES and not make_schedule(schedule, 2, 2).flushes:
        raise InvalidValueError(
            f"checkpoint.updates: {schedule} runs an epoch without interruption",
            "remove it, or take a schedule with a flush",
            keys=("checkpoint", "schedule"),
        )
