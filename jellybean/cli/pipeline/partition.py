"""pipeline profile, pipeline plan: profile a model by layer and partition it into stages."""

from __future__ import annotations

import json as json_module
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from jellybean.cli.app import Json, checked_picture, checked_result, example
from jellybean.cli.console import out, print_json, said_if_long, say
from jellybean.cli.pipeline.group import MAX_ACTIONS, pipeline
from jellybean.cli.times import TimeLimit, command_limit
from jellybean.documents.training import TRAINING_FILE
from jellybean.documents.training.plan import PlannedStage, objective_hint, reason_against_training
from jellybean.errors import InfeasibleError, OutOfTimeError
from jellybean.folders import write_output
from jellybean.quantities import did_you_mean, quoted
from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    COLLECTIVES,
    ITERATION_OBJECTIVES,
    MEMORY_SCHEDULES,
    OBJECTIVES,
    LayerGraph,
    MemoryLimit,
    NothingFitsError,
    Partition,
    TopologyLevel,
    partition,
    partition_line,
)

_Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N[,N]",
        help="Number of workers, 4 by default; for a hierarchy one number per level, inner first: 4,4.",
    ),
]
_Speeds = Annotated[
    str | None,
    typer.Option(
        metavar="N,N",
        help="Heterogeneous devices in a line, instead of --workers: speeds relative to the profiled device.",
    ),
]
_Schedule = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Schedule that determines memory use, with --memory; 1f1b by default: {', '.join(MEMORY_SCHEDULES)}.",
    ),
]
_AllReduce = Annotated[
    str | None,
    typer.Option(
        "--all-reduce",
        metavar="NAME",
        help=f"All-reduce algorithm of replicated stages: {', '.join(COLLECTIVES)}; PipeDream's by default.",
    ),
]


_Bandwidth = Annotated[
    str, typer.Option(metavar="B[,B]", help="Bytes per second between workers; one per level, inner first.")
]
_Objective = Annotated[str, typer.Option(metavar="NAME", help=f"Objective to minimise: {', '.join(OBJECTIVES)}.")]
_Memory = Annotated[float | None, typer.Option(metavar="BYTES", help="Memory of a device; unlimited by default.")]
_Microbatches = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_ACTIONS, help=f"Micro-batches per iteration, for {', '.join(ITERATION_OBJECTIVES)}."),
]
_States = Annotated[
    float, typer.Option(min=0, help="Optimizer state per byte of parameters, with --memory: momentum 1, Adam 2.")
]
_ShardingPlot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="With alpa: draw how layers are split: .svg, .png, .pdf.")
]
_PlanOut = Annotated[
    Path | None, typer.Option("--out", metavar="FILE.json", help="Write the plan for `plan` in training.yaml.")
]


@pipeline.command(
    "profile",
    epilog=example(
        "jellybean pipeline profile model.onnx",
        "jellybean pipeline profile model.onnx --inputs data/heldout.npz --out layers.txt",
        "jellybean pipeline profile nets.py:resnet --json",
        "jellybean pipeline profile my-digits --out layers.txt",
    ),
)
def profile_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An ONNX file, FILE.py:FUNCTION (or PACKAGE.MODULE:FUNCTION) that returns a torch module and a tuple "
            "of its inputs, or a folder with training.yaml.",
        ),
    ],
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Requests for an ONNX model: .npz with an array per input.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.05, max=86_400, help="Measurement time in seconds.")] = 1.0,
    out_: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the layer profile for `pipeline plan`.")
    ] = None,
    json: Json = False,
) -> None:
    """Profile a model by layer: forward and backward time, activation and parameter bytes, and possible cuts."""
    from jellybean.pipeline.model_profile import profile_model

    if out_ is not None:
        checked_result("--out", out_)
    if (Path(model) / TRAINING_FILE).is_file():
        from jellybean.training.model_profile import profile_training

        if inputs is not None:
            raise typer.BadParameter(f"--inputs are for ONNX models; {model} has its data in {TRAINING_FILE}")
        with said_if_long(f"measuring {model}, layer by layer"):
            profiled = profile_training(Path(model), seconds=seconds)
    else:
        with said_if_long(f"measuring {model}, layer by layer"):
            profiled = profile_model(model, inputs=inputs, seconds=seconds)
    if out_ is not None:
        write_output(out_, profiled.to_text())
        say(f"wrote {out_}; next: jellybean pipeline plan {out_}")
    if json:
        print_json(profiled.to_json())
        return
    out.print(profiled.table())
    for note in profiled.notes:
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
        "jellybean pipeline plan vgg16.txt --workers 4 --objective alpa --microbatches 8 --plot shards.svg",
        "jellybean pipeline plan layers.txt --workers 4 --out my-digits/stages.json",
        "jellybean pipeline plan inception.txt --workers 2 --bandwidth 1e10 --objective branches",
        "jellybean pipeline plan vgg16.txt --speeds 0.05,0.2,1 --bandwidth 2e6,1e8 --objective latency",
    ),
)
def plan_command(
    profile: Annotated[
        Path, typer.Argument(metavar="PROFILE", help="Layers with their costs, in the format of PipeDream.")
    ],
    workers: _Workers = None,
    bandwidth: _Bandwidth = "1e9",
    objective: _Objective = "slowest-stage",
    speeds: _Speeds = None,
    memory: _Memory = None,
    schedule: _Schedule = None,
    microbatches: _Microbatches = None,
    states: _States = 0.0,
    all_reduce: _AllReduce = None,
    plot: _ShardingPlot = None,
    out_: _PlanOut = None,
    time_limit: TimeLimit = None,
    json: Json = False,
) -> None:
    """Partition a model into pipeline stages with replication; prints the optimum, or the best found and its gap."""
    from jellybean.pipeline.profile_file import read_profile
    from jellybean.pipeline.sharding.plot import save_sharding
    from jellybean.pipeline.tables import partition_json, partition_notes, partition_table

    _require_objective(objective)
    if plot is not None:
        if objective != "alpa":
            raise typer.BadParameter(f"--plot draws how alpa splits layers; {objective} splits none")
        checked_picture(plot)
    if out_ is not None:
        checked_result("--out", out_)
    graph = read_profile(profile)
    links = _numbers("--bandwidth", bandwidth)
    options = _Options(objective, speeds, workers, memory, schedule, microbatches, states, all_reduce)
    options.check()
    searches = f"searching for the fastest partition of {len(graph.layers)} layers"
    with said_if_long(searches), command_limit(time_limit):
        partitioned = options.partition(graph, links)
    record = partition_json(graph, partitioned, options.iteration)
    if out_ is not None:
        write_output(out_, json_module.dumps(record, indent=2) + "\n")
        reason = reason_against_training(PlannedStage.model_validate(stage) for stage in record["stages"])
        say(f"wrote {out_}; {reason or f'to train it: `plan: {out_.name}` in training.yaml'}")
    if json:
        print_json(record)
    else:
        out.print(partition_table(graph, partitioned))
        for note in partition_notes(graph, partitioned, line=speeds is not None):
            out.print(note, style="dim", soft_wrap=True, markup=False)
    if plot is not None:
        save_sharding(graph, partitioned, plot)
        say(f"wrote {plot}")


def _require_objective(name: str) -> None:
    if name not in OBJECTIVES:
        hint = objective_hint(name, planner=True) or did_you_mean(name, OBJECTIVES)
        known = hint or f"there are {', '.join(OBJECTIVES)}"
        raise typer.BadParameter(f"unknown objective {quoted(name)}; {known}")


@dataclass(frozen=True)
class _Options:
    """Options of `pipeline plan` that depend on each other."""

    objective: str
    speeds: str | None
    workers: str | None
    memory: float | None
    schedule: str | None
    microbatches: int | None
    states: float
    all_reduce: str | None

    def check(self) -> None:
        """BadParameter for an option that would have no effect in this combination."""
        if self.speeds is not None and any(x is not None for x in (self.workers, self.memory, self.all_reduce)):
            raise typer.BadParameter("--workers, --memory and --all-reduce cannot be combined with --speeds")
        if self.memory is None and (self.schedule is not None or self.states):
            raise typer.BadParameter("--schedule and --states need --memory: they determine how much memory is used")
        if self.memory is None and self.microbatches is not None and self.objective not in ITERATION_OBJECTIVES:
            allowed = ", ".join(ITERATION_OBJECTIVES)
            raise typer.BadParameter(
                f"--microbatches needs --memory or one of the objectives {allowed}, not {self.objective}"
            )

    @property
    def iteration(self) -> int | None:
        """Micro-batches of the iteration that the objective is; None if it is none."""
        return self.microbatches if self.objective in ITERATION_OBJECTIVES else None

    def partition(self, graph: LayerGraph, bandwidths: list[float]) -> Partition:
        """Partition the layers by these options.

        InfeasibleError if no partition fits into memory; BadParameter if the solver rejects the options.
        """
        try:
            if self.speeds is not None:
                speeds = _numbers("--speeds", self.speeds)
                return partition_line(graph, speeds, bandwidths, objective=self.objective)
            return partition(
                graph,
                _levels(_numbers("--workers", self.workers or "4"), bandwidths),
                objective=self.objective,
                limit=self._memory_limit(),
                microbatches=self.microbatches,
                all_reduce=self.all_reduce,
            )
        except NothingFitsError as error:
            raise InfeasibleError((str(error),)) from error
        except OutOfTimeError:
            raise
        except SolverError as error:
            raise typer.BadParameter(str(error)) from error

    def _memory_limit(self) -> MemoryLimit | None:
        if self.memory is None:
            return None
        return MemoryLimit(self.memory, self.schedule or "1f1b", self.microbatches, self.states)


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
        raise typer.BadParameter(f"{option} {text!r}: all numbers must be finite")
    return values
