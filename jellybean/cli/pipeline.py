"""pipeline: models cut into stages, and schedules simulated, drawn and compared."""

from __future__ import annotations

import json as json_module
import math
from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Json, app, example, page, picture
from jellybean.cli.console import out, print_json, say, warn
from jellybean.errors import InfeasibleError
from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    COLLECTIVES,
    ITERATION_OBJECTIVES,
    MEMORY_SCHEDULES,
    OBJECTIVES,
    SCHEDULES,
    MemoryLimit,
    NothingFitsError,
    Schedule,
    ScheduleCosts,
    StageSeconds,
    Timeline,
    TopologyLevel,
    make_schedule,
    partition,
    partition_line,
    schedule_violations,
    simulate,
    stage_seconds,
)

pipeline = typer.Typer(
    name="pipeline",
    help="Pipeline parallelism: cut a model into stages; simulate, draw and compare schedules.",
    no_args_is_help=True,
)
app.add_typer(pipeline)

MOST_ACTIONS = 5_000_000  # more do not fit into memory with their times

Name = Annotated[str, typer.Option("--schedule", metavar="NAME", help=f"One of {', '.join(SCHEDULES)}.")]
Devices = Annotated[int, typer.Option(min=1, help="Devices in the pipeline.")]
Microbatches = Annotated[int, typer.Option(min=1, help="Micro-batches of the iteration, or that are simulated.")]
Chunks = Annotated[int | None, typer.Option(min=1, help="Stages per device, for interleaved; others fix theirs.")]
Forward = Annotated[
    str, typer.Option("--forward-s", metavar="SECONDS", help="Forward of a stage; one for all, or 1,2,1,1 by stage.")
]
Backward = Annotated[str, typer.Option("--backward-s", metavar="SECONDS", help="Backward of a stage; likewise.")]
Input = Annotated[
    str | None,
    typer.Option("--input-s", metavar="SECONDS", help="Input gradient, of zero-bubble schedules; half a backward."),
]
Weight = Annotated[
    str | None, typer.Option("--weight-s", metavar="SECONDS", help="Weight gradient; what is left of the backward.")
]
Transfer = Annotated[
    str, typer.Option("--transfer-s", metavar="SECONDS", help="What crosses between a stage and the next, either way.")
]
Overlap = Annotated[bool, typer.Option("--overlap/--no-overlap", help="Devices compute while they send and receive.")]


@pipeline.command(
    "profile",
    epilog=example(
        "jellybean pipeline profile model.onnx",
        "jellybean pipeline profile model.onnx --inputs data/heldout.npz --out layers.txt",
        "jellybean pipeline profile nets.py:resnet --json",
    ),
)
def profile_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An ONNX file, or FILE.py:FUNCTION (PACKAGE.MODULE:FUNCTION) that returns a torch module and a tuple "
            "of its inputs.",
        ),
    ],
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Requests for an ONNX model: .npz, an array per input.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Measuring time.")] = 1.0,
    out_: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the layers for `pipeline plan`.")
    ] = None,
    json: Json = False,
) -> None:
    """Profile a model by layer: forward and backward time, activation and parameter bytes, and where it may be cut."""
    from jellybean.pipeline.model_profile import profile_model

    found = profile_model(model, inputs=inputs, seconds=seconds)
    if out_ is not None:
        out_.write_text(found.to_text(), encoding="utf-8")
        say(f"wrote {out_}; next: jellybean pipeline plan {out_}")
    if json:
        print_json(found.to_json())
        return
    out.print(found.table())
    for note in found.notes:
        out.print(note, style="dim", soft_wrap=True, markup=False)


@pipeline.command(
    "plan",
    epilog=example(
        "jellybean pipeline plan resnet50.txt --workers 4 --bandwidth 1e9",
        "jellybean pipeline plan resnet50.txt --workers 4,4 --bandwidth 4e9,2.7e9 --json",
        "jellybean pipeline plan vgg16.txt --workers 16 --bandwidth 1e9 --objective pipedream-paper",
        "jellybean pipeline plan vgg16.txt --workers 8 --bandwidth 1e10 --all-reduce ring",
        "jellybean pipeline plan vgg16.txt --workers 4 --memory 12e9 --schedule pipedream-2bw --states 2",
        "jellybean pipeline plan vgg16.txt --workers 8,2 --bandwidth 1e10,1e9 --objective dapple --microbatches 16",
        "jellybean pipeline plan inception.txt --workers 2 --bandwidth 1e10 --objective branches",
        "jellybean pipeline plan vgg16.txt --speeds 0.05,0.2,1 --bandwidth 2e6,1e8 --objective latency",
    ),
)
def plan_command(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="Layers with their costs, in PipeDream's format.")],
    workers: Annotated[
        str | None, typer.Option(metavar="N[,N]", help="Workers, 4 by default; of a hierarchy inner first: 4,4.")
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(metavar="B[,B]", help="Bytes per second between workers; one per level, inner first.")
    ] = "1e9",
    objective: Annotated[
        str, typer.Option(metavar="NAME", help=f"What is minimised: {', '.join(OBJECTIVES)}.")
    ] = "slowest-stage",
    speeds: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Unlike devices in a line, in place of --workers: speeds, 1 the profile's."),
    ] = None,
    memory: Annotated[
        float | None, typer.Option(metavar="BYTES", help="What a device holds; no limit by default.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Says what is kept in --memory, 1f1b by default: {', '.join(MEMORY_SCHEDULES)}."
        ),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_ACTIONS, help="Micro-batches of an iteration, for alpa, dapple and --memory."),
    ] = None,
    states: Annotated[
        float, typer.Option(min=0, help="Optimizer's bytes per byte of parameters, for --memory: momentum 1, Adam 2.")
    ] = 0.0,
    all_reduce: Annotated[
        str | None,
        typer.Option(
            "--all-reduce",
            metavar="NAME",
            help=f"How replicas sum gradients: {', '.join(COLLECTIVES)}; or PipeDream's.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Cut a model into pipeline stages, replicated where it pays: the fastest there is, or how far it may be off."""
    from jellybean.pipeline.profile_file import read_profile
    from jellybean.pipeline.tables import partition_json, partition_notes, partition_table

    graph = read_profile(profile)
    links = _numbers("--bandwidth", bandwidth)
    _refuse_unused(objective, speeds, workers, memory, schedule, microbatches, states, all_reduce)
    try:
        if speeds is not None:
            found = partition_line(graph, _numbers("--speeds", speeds), links, objective=objective)
        else:
            limit = MemoryLimit(memory, schedule or "1f1b", microbatches, states) if memory is not None else None
            levels = _levels(_numbers("--workers", workers or "4"), links)
            found = partition(
                graph, levels, objective=objective, limit=limit, microbatches=microbatches, all_reduce=all_reduce
            )
    except NothingFitsError as error:
        raise InfeasibleError((str(error),)) from error
    except SolverError as error:
        raise typer.BadParameter(str(error)) from error
    if json:
        print_json(partition_json(graph, found))
        return
    out.print(partition_table(graph, found))
    for note in partition_notes(graph, found, line=speeds is not None):
        out.print(note, style="dim", soft_wrap=True, markup=False)


def _refuse_unused(
    objective: str,
    speeds: str | None,
    workers: str | None,
    memory: float | None,
    schedule: str | None,
    microbatches: int | None,
    states: float,
    all_reduce: str | None,
) -> None:
    """What would make no difference was meant otherwise."""
    if speeds is not None and (workers is not None or memory is not None or all_reduce is not None):
        raise typer.BadParameter("--workers, --memory and --all-reduce do not go with --speeds")
    if memory is None and (schedule is not None or states):
        raise typer.BadParameter("--schedule and --states say what is kept in memory: give --memory, too")
    if memory is None and microbatches is not None and objective not in ITERATION_OBJECTIVES:
        raise typer.BadParameter(
            f"--microbatches goes with {', '.join(ITERATION_OBJECTIVES)} and --memory, not with {objective}"
        )


def _levels(counts: list[float], bandwidths: list[float]) -> list[TopologyLevel]:
    if len(counts) != len(bandwidths) or any(count != int(count) for count in counts):
        raise typer.BadParameter("--workers and --bandwidth have one number per level, such as 4,4 and 4e9,2.7e9")
    return [TopologyLevel(int(count), speed) for count, speed in zip(counts, bandwidths, strict=True)]


def _numbers(option: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text!r}: write numbers, such as 4 or 4,4") from error
    if not all(map(math.isfinite, values)):
        raise typer.BadParameter(f"{option} {text!r}: numbers must be finite")
    return values


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
    devices: Devices = 4,
    microbatches: Microbatches = 8,
    chunks: Chunks = None,
    forward: Forward = "1",
    backward: Backward = "2",
    input_: Input = None,
    weight: Weight = None,
    transfer: Transfer = "0",
    overlap: Overlap = True,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace for chrome://tracing.")] = None,
    actions: Annotated[bool, typer.Option("--actions", help="Print every device's actions.")] = False,
    json: Json = False,
) -> None:
    """Time a schedule: makespan, bubble, and what each device keeps in memory."""
    from jellybean.pipeline.chrome_trace import chrome_trace
    from jellybean.pipeline.tables import device_table, schedule_json

    if trace is not None:
        page("--trace", trace)
    timeline = _simulated(name, devices, microbatches, chunks, forward, backward, input_, weight, transfer, overlap)
    if trace is not None:
        trace.write_text(json_module.dumps(chrome_trace(timeline)), encoding="utf-8")
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
    ),
)
def draw_command(
    name: Name,
    devices: Devices = 4,
    microbatches: Microbatches = 8,
    chunks: Chunks = None,
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
    from jellybean.pipeline.timeline_plot import save_timeline
    from jellybean.pipeline.timeline_text import draw_timeline

    if plot is not None:
        picture(plot)
    timeline = _simulated(name, devices, microbatches, chunks, forward, backward, input_, weight, transfer, overlap)
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
    forward: Annotated[float, typer.Option("--forward-s", min=0, help="Forward of all that a device holds.")] = 1.0,
    backward: Annotated[float, typer.Option("--backward-s", min=0, help="Backward of all that a device holds.")] = 2.0,
    transfer: Annotated[float, typer.Option("--transfer-s", min=0, help="Between a stage and the next.")] = 0.0,
    overlap: Overlap = True,
    json: Json = False,
) -> None:
    """Compare schedules on one model: where a device holds several stages, each takes its part of the time."""
    from jellybean.pipeline.tables import comparison_table, schedule_json

    if not all(map(math.isfinite, (forward, backward, transfer))):
        raise typer.BadParameter("--forward-s, --backward-s and --transfer-s must be finite")
    timelines: list[Timeline] = []
    refused: dict[str, str] = {}
    for name in (name.strip() for name in names.split(",")):
        try:
            schedule = _made(name, devices, microbatches, None, backward / forward if forward else 2.0)
        except SolverError as error:
            if name not in SCHEDULES:
                raise typer.BadParameter(str(error)) from error
            refused[name] = str(error)
            continue
        parts = schedule.stages / devices
        costs = ScheduleCosts(forward / parts, backward / parts, transfer_s=transfer, overlap=overlap)
        timelines.append(simulate(schedule, costs))
    if json:
        print_json({"schedules": [schedule_json(timeline) for timeline in timelines], "refused": refused})
        return
    out.print(comparison_table(timelines))
    for name, reason in refused.items():
        warn(f"{name} is left out: {reason}")


def _simulated(
    name: str,
    devices: int,
    microbatches: int,
    chunks: int | None,
    forward: str,
    backward: str,
    input_: str | None,
    weight: str | None,
    transfer: str,
    overlap: bool,
) -> Timeline:
    forward_s, backward_s = _seconds("--forward-s", forward), _seconds("--backward-s", backward)
    ratio = _mean(backward_s) / _mean(forward_s) if _mean(forward_s) > 0 else 2.0
    try:
        schedule = _made(name, devices, microbatches, chunks, ratio)
    except SolverError as error:
        raise typer.BadParameter(str(error)) from error
    input_s = None if input_ is None else _seconds("--input-s", input_)
    weight_s = None if weight is None else _seconds("--weight-s", weight)
    times = {"--forward-s": forward_s, "--backward-s": backward_s, "--input-s": input_s, "--weight-s": weight_s}
    for option, seconds in times.items():
        if isinstance(seconds, tuple) and len(seconds) != schedule.stages:
            raise typer.BadParameter(f"{option} has {len(seconds)} times; {name} has {schedule.stages} stages")
    if input_s is not None and weight_s is None:
        weight_s = tuple(
            max(0.0, stage_seconds(backward_s, s) - stage_seconds(input_s, s)) for s in range(schedule.stages)
        )
    transfer_s = _seconds("--transfer-s", transfer)
    if isinstance(transfer_s, tuple) and len(transfer_s) != schedule.stages - 1:
        raise typer.BadParameter(f"--transfer-s has {len(transfer_s)} times; there are {schedule.stages - 1} crossings")
    timeline = simulate(schedule, ScheduleCosts(forward_s, backward_s, input_s, weight_s, transfer_s, overlap=overlap))
    if not math.isfinite(timeline.makespan_s):
        raise typer.BadParameter("the times add up to more than numbers can hold: write smaller ones")
    return timeline


def _made(name: str, devices: int, microbatches: int, chunks: int | None, ratio: float) -> Schedule:
    """The schedule, checked by every rule before it is shown."""
    if (size := 2 * devices * microbatches * max(chunks or 2, 2)) > MOST_ACTIONS:
        raise SolverError(f"about {size:,} actions are too many; {MOST_ACTIONS:,} are simulated at most")
    schedule = make_schedule(name, devices, microbatches, chunks, backward_ratio=ratio)
    if wrong := schedule_violations(schedule):
        raise SolverError(f"the schedule {name} breaks its own rules ({wrong[0]}); please report this problem")
    return schedule


def _seconds(option: str, text: str) -> StageSeconds:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text!r}: write seconds, such as 1 or 1,2,1.5,1 by stage") from error
    if not all(0 <= value < float("inf") for value in values):
        raise typer.BadParameter(f"{option} {text!r}: seconds are finite and not below 0")
    return values[0] if len(values) == 1 else values


def _mean(seconds: StageSeconds) -> float:
    return sum(seconds) / len(seconds) if isinstance(seconds, tuple) else seconds
