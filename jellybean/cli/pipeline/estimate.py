"""pipeline estimate: parameters, memory, FLOPs and devices of a transformer that does not exist yet."""

from __future__ import annotations

from typing import Annotated

import typer

from jellybean.cli.app import Json, example
from jellybean.cli.console import out, print_json
from jellybean.cli.pipeline.group import pipeline
from jellybean.quantities import SIZE, InvalidValueError, parse_quantity
from jellybean_solver import SolverError
from jellybean_solver.pipeline import (
    DEVICE_MEMORY_BYTES,
    RECOMPUTATIONS,
    TRAINING_PRECISIONS,
    TrainingSetup,
    Transformer,
)

MAX_COUNT = 1_000_000_000  # of options that are counts; keeps all figures in the range of a float
MAX_LAYERS = 100_000


_Layers = Annotated[int, typer.Option(min=1, max=MAX_LAYERS, help="Transformer layers.")]
_Hidden = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Width of a layer.")]
_Vocab = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Tokens of the vocabulary.")]
_Seq = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Tokens per sample.")]
_Heads = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_COUNT, help="Attention heads; by default 128 wide from --hidden 4096, 64 below."),
]
_States = Annotated[
    float | None,
    typer.Option(
        min=0, max=1e6, help="Optimizer state per byte of weights; Adam's by default: 6 for 16-bit weights, else 2."
    ),
]
_Precision = Annotated[
    str, typer.Option(metavar="NAME", help=f"As in training.yaml: {', '.join(TRAINING_PRECISIONS)}.")
]
_Recompute = Annotated[
    str, typer.Option(metavar="NAME", help=f"Activations computed twice: {', '.join(RECOMPUTATIONS)}.")
]
_MicroBatch = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Samples per micro-batch.")]
_Batch = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_COUNT, help="Samples per iteration; by default a micro-batch per pipeline stage."),
]
_Tensor = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Devices that share a layer.")]
_Stages = Annotated[int, typer.Option("--pipeline", min=1, max=MAX_LAYERS, help="Pipeline stages.")]
_Replicas = Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="Data-parallel replicas; 1 by default.")]
_Devices = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_COUNT, help="All devices, instead of --replicas: tensor x pipeline x replicas."),
]
_Zero = Annotated[
    int,
    typer.Option(
        min=0, max=3, help="ZeRO stage: replicas share optimizer states (1), also gradients (2), also weights (3)."
    ),
]
_DeviceMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory of a device, such as '24 GB'; by default well-known devices."),
]


@pipeline.command(
    "estimate",
    epilog=example(
        "jellybean pipeline estimate --layers 96 --hidden 12288 --vocab 51200",
        "jellybean pipeline estimate --layers 24 --hidden 1024 --vocab 50257 --seq 1024 --device-memory '24 GB'",
        "jellybean pipeline estimate --layers 96 --hidden 12288 --vocab 51200 --batch 1536 --tensor 8 --pipeline 16 "
        "--devices 1024 --recompute full --json",
    ),
)
def estimate_command(
    layers: _Layers,
    hidden: _Hidden,
    vocab: _Vocab,
    seq: _Seq = 2048,
    heads: _Heads = None,
    states: _States = None,
    precision: _Precision = "bfloat16-weights",
    recompute: _Recompute = "none",
    micro_batch: _MicroBatch = 1,
    batch: _Batch = None,
    tensor: _Tensor = 1,
    stages: _Stages = 1,
    replicas: _Replicas = None,
    devices: _Devices = None,
    zero: _Zero = 0,
    device_memory: _DeviceMemory = None,
    json: Json = False,
) -> None:
    """Estimate a transformer from its size: parameters, memory, FLOPs, which devices it fits and how many it needs."""
    from jellybean.pipeline.estimates.transformer_training import TrainingEstimate

    if precision not in TRAINING_PRECISIONS:
        raise typer.BadParameter(f"unknown precision {precision}; there are {', '.join(TRAINING_PRECISIONS)}")
    try:
        transformer = Transformer(layers, hidden, vocab, _heads(hidden, heads), seq)
        setup = TrainingSetup(
            TRAINING_PRECISIONS[precision],
            states=states,
            tensor=tensor,
            pipeline=stages,
            replicas=_replicas(devices, tensor * stages, replicas),
            zero=zero,
            micro_batch=micro_batch,
            batch=batch,
            recompute=recompute,
        )
        setup.check(transformer)
    except SolverError as error:
        raise typer.BadParameter(str(error)) from error
    estimate = TrainingEstimate(transformer, setup, _device_memories(device_memory))
    if json:
        print_json(estimate.to_json())
        return
    for table in estimate.tables():
        out.print(table)
    for note in estimate.notes():
        out.print(note, style="dim", soft_wrap=True)


def _heads(hidden: int, heads: int | None) -> int:
    if heads is not None:
        return heads
    width = 128 if hidden >= 4096 else 64
    if hidden % width:
        raise typer.BadParameter(f"--hidden {hidden} is not a multiple of {width}, the width of a head: give --heads")
    return hidden // width


def _replicas(devices: int | None, per_replica: int, replicas: int | None) -> int:
    if devices is None:
        return replicas or 1
    if replicas is not None:
        raise typer.BadParameter("--devices and --replicas exclude each other: devices = tensor x pipeline x replicas")
    if devices % per_replica:
        raise typer.BadParameter(f"--devices {devices} is not a multiple of tensor x pipeline = {per_replica}")
    return devices // per_replica


def _device_memories(device_memory: str | None) -> dict[str, float]:
    """Name of a device -> bytes; the well-known devices if no size is given."""
    if device_memory is None:
        return DEVICE_MEMORY_BYTES
    try:
        size_bytes = parse_quantity(SIZE, device_memory)
    except InvalidValueError as error:
        raise typer.BadParameter(f"--device-memory: {error.message}; {error.hint}") from error
    if size_bytes < 1:
        raise typer.BadParameter("--device-memory must be at least a byte")
    return {"given": size_bytes}
