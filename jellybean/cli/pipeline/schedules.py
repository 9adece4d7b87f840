"""pipeline simulate, draw, compare: simulate, draw and compare pipeline schedules."""

from __future__ import annotations

import json as json_module
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Json, checked_file, checked_picture, example
from jellybean.cli.console import out, print_json, say, warn
from jellybean.cli.pipeline.group import MAX_ACTIONS, pipeline
from jellybean.folders import write_output
from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    REPLICATED_SCHEDULES,
    SCHEDULES,
    Schedule,
    ScheduleCosts,
    StageSeconds,
    Timeline,
    make_schedule,
    replicated_schedule,
    schedule_violations,
    simulate,
    stage_seconds,
)

Name = Annotated[str, typer.Option("--schedule", metavar="NAME", help=f"One of {', '.join(SCHEDULES)}.")]
Devices = Annotated[int, typer.Option(min=1, help="Devices in the pipeline.")]
Microbatches = Annotated[int, typer.Option(min=1, help="Micro-batches of the simulated iteration.")]
Chunks = Annotated[
    int | None, typer.Option(min=1, help="Stages per device, for interleaved; the other schedules determine it.")
]
Replicas = Annotated[
    str | None,
    typer.Option(
        metavar="N,N",
        help=f"Replicas of each stage, in place of --devices: 3,1. For {', '.join(REPLICATED_SCHEDULES)}.",
    ),
]
PlainDevices = Annotated[int | None, typer.Option(min=1, help="Devices in the pipeline; 4 by default.")]
Forward = Annotated[
    str,
    typer.Option(
        "--forward-s", metavar="SECONDS", help="Forward time of a stage: one number, or one per stage: 1,2,1,1."
    ),
]
Backward = Annotated[
    str, typer.Option("--backward-s", metavar="SECONDS", help="Backward time of a stage: one number, or one per stage.")
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input-s",
        metavar="SECONDS",
        help="Input gradient time, for zero-bubble schedules; half of the backward by default.",
    ),
]
Weight = Annotated[
    str | None,
    typer.Option("--weight-s", metavar="SECONDS", help="Weight gradient time; the rest of the backward by default."),
]
Transfer = Annotated[
    str,
    typer.Option("--transfer-s", metavar="SECONDS", help="Transfer time between adjacent stages, in both directions."),
]
Overlap = Annotated[bool, typer.Option("--overlap/--no-overlap", help="Devices compute during transfers.")]


@pipeline.command(
    "simulate",
    epilog=example(
        "jellybean pipeline simulate --schedule 1f1b --devices 4 --microbatches 8 --forward-s 1 --backward-s 2",
        "jellybean pipeline simulate --schedule interleaved --chunks 2 --devices 4 --microbatches 8 --json",
        "jellybean pipeline simulate --schedule zb-h1 --devices 4 --microbatches 8 --trace trace.json",
    ),
)
def simulate_command(
    name: Name,
    devices: PlainDevices = None,
    microbatches: Microbatches = 8,
    chunks: Chunks = None,
    replicas: Replicas = None,
    forward: Forward = "1",
    backward: Backward = "2",
    input_: Input = None,
    weight: Weight = None,
    transfer: Transfer = "0",
    overlap: Overlap = True,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace for chrome://tracing.")] = None,
    actions: Annotated[bool, typer.Option("--actions", help="Print the actions of each device.")] = False,
    json: Json = False,
) -> None:
    """Simulate a schedule: makespan, bubble ratio and peak memory of each device."""
    from jellybean.pipeline.tables import device_table, schedule_json
    from jellybean.pipeline.timelines.chrome_trace import chrome_trace

    if trace is not None:
        checked_file("--trace", trace)
    times = _Times(forward, backward, input_, weight, transfer, overlap)
    timeline = _simulate(_size(name, devices, microbatches, chunks, replicas), times)
    if trace is not None:
        write_output(trace, json_module.dumps(chrome_trace(timeline)))
        say(f"wrote {trace}")
    if json:
        lines = {"actions": timeline.schedule.to_text().splitlines()} if actions else {}
        print_json({**schedule_json(timeline), **lines})
        return
    out.print(device_table(timeline))
    if actions:
        out.print(timeline.schedule.to_text(), soft_wrap=True)


@pipeline.command(
    "draw",
    epilog=example(
        "jellybean pipeline draw --schedule chimera --devices 4 --microbatches 8",
        "jellybean pipeline draw --schedule wpipe --devices 4 --microbatches 16 --plot wpipe.svg",
        "jellybean pipeline draw --schedule pipedream --replicas 2,1 --microbatches 8 --forward-s 2,1 --backward-s 4,2",
    ),
)
def draw_command(
    name: Name,
    devices: PlainDevices = None,
    microbatches: Microbatches = 8,
    chunks: Chunks = None,
    replicas: Replicas = None,
    forward: Forward = "1",
    backward: Backward = "2",
    input_: Input = None,
    weight: Weight = None,
    transfer: Transfer = "0",
    overlap: Overlap = True,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture (.svg, .png, .pdf) instead.")
    ] = None,
) -> None:
    """Draw a schedule's timeline."""
    from jellybean.pipeline.timelines.plot import save_timeline
    from jellybean.pipeline.timelines.text import draw_timeline

    if plot is not None:
        checked_picture(plot)
    times = _Times(forward, backward, input_, weight, transfer, overlap)
    timeline = _simulate(_size(name, devices, microbatches, chunks, replicas), times)
    if plot is None:
        out.print(draw_timeline(timeline, columns=out.width if out.is_terminal else None), soft_wrap=True)
        return
    save_timeline(timeline, plot)
    say(f"wrote {plot}")


@pipeline.command(
    "compare",
    epilog=example(
        "jellybean pipeline compare --devices 4 --microbatches 8",
        "jellybean pipeline compare --schedules gpipe,1f1b,zb-h1 --devices 8 --microbatches 32 --json",
    ),
)
def compare_command(
    names: Annotated[
        str, typer.Option("--schedules", metavar="NAMES", help="Schedules, separated by commas; all by default.")
    ] = ",".join(SCHEDULES),
    devices: Devices = 4,
    microbatches: Microbatches = 8,
    forward: Annotated[float, typer.Option("--forward-s", min=0, help="Forward time of all stages on a device.")] = 1.0,
    backward: Annotated[
        float, typer.Option("--backward-s", min=0, help="Backward time of all stages on a device.")
    ] = 2.0,
    transfer: Annotated[
        float, typer.Option("--transfer-s", min=0, help="Transfer time between adjacent stages.")
    ] = 0.0,
    overlap: Overlap = True,
    json: Json = False,
) -> None:
    """Compare schedules on one model; with several stages per device, the stages share the device's time equally."""
    from jellybean.pipeline.tables import comparison_table, schedule_json

    if not all(map(math.isfinite, (forward, backward, transfer))):
        raise typer.BadParameter("--forward-s, --backward-s and --transfer-s must be finite")
    timelines: list[Timeline] = []
    skipped: dict[str, str] = {}
    for name in (name.strip() for name in names.split(",")):
        try:
            schedule = _make_checked(_Size(name, devices, microbatches), backward / forward if forward else 2.0)
        except SolverError as error:
            if name not in SCHEDULES:
                raise typer.BadParameter(str(error)) from error
            skipped[name] = str(error)
            continue
        parts = schedule.stages / devices
        costs = ScheduleCosts(forward / parts, backward / parts, transfer_s=transfer, overlap=overlap)
        timelines.append(simulate(schedule, costs))
    if json:
        print_json({"schedules": [schedule_json(timeline) for timeline in timelines], "refused": skipped})
        return
    out.print(comparison_table(timelines))
    for name, reason in skipped.items():
        warn(f"{name} is omitted: {reason}")


@dataclass(frozen=True)
class _Size:
    """Name and size of a schedule, as given by the options. `replicas`: of each stage; empty: one."""

    name: str
    devices: int
    microbatches: int
    chunks: int | None = None
    replicas: tuple[int, ...] = ()

    def make(self, backward_ratio: float) -> Schedule:
        """Generate the schedule. SolverError if it is not defined for these sizes."""
        if self.replicas:
            return replicated_schedule(self.name, self.replicas, self.microbatches)
        return make_schedule(self.name, self.devices, self.microbatches, self.chunks, backward_ratio=backward_ratio)


def _size(name: str, devices: int | None, microbatches: int, chunks: int | None, replicas: str | None) -> _Size:
    """The size by the options; BadParameter for devices or chunks beside replicas."""
    if replicas is None:
        return _Size(name, devices or 4, microbatches, chunks)
    if devices is not None or chunks is not None:
        raise typer.BadParameter("--replicas says how many devices there are: leave out --devices and --chunks")
    try:
        counts = tuple(int(part) for part in replicas.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"--replicas {replicas!r}: write a number for each stage, such as 3,1") from error
    return _Size(name, sum(counts), microbatches, None, counts)


@dataclass(frozen=True)
class _Times:
    """The time options as given, in seconds: one number, or one per stage separated by commas."""

    forward: str
    backward: str
    input: str | None
    weight: str | None
    transfer: str
    overlap: bool


def _simulate(size: _Size, times: _Times) -> Timeline:
    """Simulate a schedule; BadParameter for times that do not match its stages."""
    forward_s, backward_s = _seconds("--forward-s", times.forward), _seconds("--backward-s", times.backward)
    ratio = _mean(backward_s) / _mean(forward_s) if _mean(forward_s) > 0 else 2.0
    try:
        schedule = _make_checked(size, ratio)
    except SolverError as error:
        raise typer.BadParameter(str(error)) from error
    input_s = None if times.input is None else _seconds("--input-s", times.input)
    weight_s = None if times.weight is None else _seconds("--weight-s", times.weight)
    by_option = {"--forward-s": forward_s, "--backward-s": backward_s, "--input-s": input_s, "--weight-s": weight_s}
    for option, seconds in by_option.items():
        if isinstance(seconds, tuple) and len(seconds) != schedule.stages:
            raise typer.BadParameter(f"{option} has {len(seconds)} times; {size.name} has {schedule.stages} stages")
    if input_s is not None and weight_s is None:
        weight_s = tuple(
            max(0.0, stage_seconds(backward_s, s) - stage_seconds(input_s, s)) for s in range(schedule.stages)
        )
    transfer_s = _seconds("--transfer-s", times.transfer)
    if isinstance(transfer_s, tuple) and len(transfer_s) != schedule.stages - 1:
        raise typer.BadParameter(f"--transfer-s has {len(transfer_s)} times; there are {schedule.stages - 1} transfers")
    costs = ScheduleCosts(forward_s, backward_s, input_s, weight_s, transfer_s, overlap=times.overlap)
    timeline = simulate(schedule, costs)
    if not math.isfinite(timeline.makespan_s):
        raise typer.BadParameter("the sum of the times overflows: write smaller times")
    return timeline


def _make_checked(size: _Size, backward_ratio: float) -> Schedule:
    """Generate a schedule and validate it. SolverError if it is too large or cannot be generated."""
    if (actions := 2 * size.devices * size.microbatches * max(size.chunks or 2, 2)) > MAX_ACTIONS:
        raise SolverError(f"about {actions:,} actions are too many to simulate; the limit is {MAX_ACTIONS:,}")
    schedule = size.make(backward_ratio)
    if violations := schedule_violations(schedule):
        raise SolverError(f"the schedule {size.name} is invalid ({violations[0]}); please report this error")
    return schedule


def _seconds(option: str, text: str) -> StageSeconds:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text!r}: write seconds, such as 1 or 1,2,1.5,1 by stage") from error
    if not all(0 <= value < float("inf") for value in values):
        raise typer.BadParameter(f"{option} {text!r}: seconds must be finite and not negative")
    return values[0] if len(values) == 1 else values


def _mean(seconds: StageSeconds) -> float:
    return sum(seconds) / len(seconds) if isinstance(seconds, tuple) else seconds
