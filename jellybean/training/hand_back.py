"""Hands the trained model back: rank 0 collects the stages' weights and buffers, one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from jellybean.documents.training import TrainingDocument
from jellybean.training.checkpoints.checkpoint import save_model
from jellybean.training.checkpoints.frozen import fingerprint
from jellybean.training.errors import TrainingError
from jellybean.training.models.building import fill, load_model, load_skeleton
from jellybean.training.models.lora import merged, save_adapter, trained_module, with_adapters
from jellybean.training.models.pretrained import open_weights
from jellybean.training.processes.ranks import gather_from_ranks
from jellybean.training.setup import RankRun

T = TypeVar("T")


def trained_model(run: RankRun, document: TrainingDocument, directory: Path) -> nn.Module | None:
    """On rank 0 the model with the trained weights, in host memory; None on other ranks. A collective call.

    Frozen weights come from the model's function or file. A model with adapters is a PeftModel. The run ends here:
    optimizer states are freed first.
    """
    with run.rank.busy("collecting the trained model"):
        run.updates.optimizers.clear()
        frozen = gather_from_ranks(run.frozen.fingerprints())
        expected = {name: digest for own in frozen for name, digest in own.items()}
        tensors = _gather(run)
        if tensors is None:
            return None
        model = _model(document, directory, whole=run.rebuilt_whole, has_frozen=bool(expected))
        module = with_adapters(model, document)
        _check_frozen(trained_module(module), expected, document)
        fill(trained_module(module), {**run.untrained, **tensors})
        return module


def write_model(module: nn.Module, folder: Path) -> nn.Module:
    """Write `model.safetensors`, with adapters merged, and `adapter/`. Returns the model that was written."""
    save_adapter(module, folder)
    module = merged(module)
    save_model(module, folder)
    return module


def _model(document: TrainingDocument, directory: Path, *, whole: bool, has_frozen: bool) -> nn.Module:
    """The document's model, with the frozen weights that its function or file gives.

    `whole`: with memory for its weights, as something in it depends on them.
    """
    module = load_model(document, directory) if whole else load_skeleton(document, directory)
    if document.weights is not None and has_frozen:
        open_weights(directory / document.weights, module).fill((*module.parameters(), *module.buffers()))
    return module


def _check_frozen(module: nn.Module, expected: Mapping[str, str], document: TrainingDocument) -> None:
    """TrainingError if the model has other frozen weights than it had when training started."""
    changed = [n for n, value in module.named_parameters() if n in expected and fingerprint(value) != expected[n]]
    if changed:
        given = document.weights or document.model_name
        raise TrainingError(
            f"{given} gave other frozen weights when training started than now: {changed[0]} differs; let it give the "
            "same ones each time, and start over with --fresh"
        )


def _gather(run: RankRun) -> dict[str, torch.Tensor] | None:
    """On rank 0 all stages' trained weights and updated buffers by name; None on the other ranks. A collective call."""
    own = _own_tensors(run)
    kinds_of_ranks = gather_from_ranks({name: (tuple(value.shape), value.dtype) for name, value in own.items()})
    found = dict(own) if run.rank.is_first else None
    for owner, kinds in _others_of_first_replica(run, kinds_of_ranks):
        for name, (shape, dtype) in kinds.items():
            if found is not None:
                found[name] = torch.empty(shape, dtype=dtype)
                dist.recv(found[name], owner)
            elif run.rank.rank == owner:
                dist.send(own[name].contiguous(), 0)
    return found


def _others_of_first_replica(run: RankRun, values: Sequence[T]) -> list[tuple[int, T]]:
    """(rank, value) of the first ranks of the other devices' tensor groups."""
    step = run.rank.tensor
    return [(rank, values[rank]) for rank in range(step, run.schedule.devices * step, step)]


def _own_tensors(run: RankRun) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    averages = run.updates.averages
    for copy, stage in run.held.items():
        if copy[1] == 0 and run.rank.replica == 0:
            weights = stage.versions.learned
            for name, average in averages.of(copy).items() if averages is not None else ():
                weights[name] = average.to(weights[name].dtype)
            whole = run.split.weights.whole_weights(weights)
            found |= {name: value.detach().cpu() for name, value in whole.items()}
            found |= {name: value.detach().cpu() for name, value in stage.saved_buffers.items()}
    return found
