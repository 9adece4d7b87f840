"""Which large tensors a process keeps once its run is set up."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from jellybean.documents import TrainingDocument
from jellybean.documents.training.tensor import TensorSpec
from jellybean.training import Rank, RankRun, set_up_run
from tests.support.training_inputs import training_document

FILE = "layers.safetensors"
LAYERS, WIDTH, ROWS = 8, 64, 16


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def few_rows() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    return {"train": (rows, rows), "test": (rows[:2], rows[:2])}


def write_layers(folder: Path) -> None:
    save_file(layers().state_dict(), folder / FILE)


@dataclass(frozen=True)
class SetUp:
    """Set up a rank; returns (sizes of the large tensors that it then keeps, of those that its stages have)."""

    folder: str
    devices: int
    weights: str | None = None
    tensor: int = 1

    def __call__(self, rank: int) -> tuple[list[int], list[int]]:
        before = _large_tensors()
        place = Rank(rank, self.devices, torch.device("cpu"), tensor=self.tensor)
        run = set_up_run(self._document(), Path(self.folder), place)
        kept = {start: size for start, size in _large_tensors().items() if start not in before}
        staged = {value.untyped_storage().data_ptr(): value.numel() for value in _weights(run) if _is_large(value)}
        run.transport.close()
        return sorted(kept.values()), sorted(staged.values())

    def _document(self) -> TrainingDocument:
        return training_document(
            0.1,
            model=f"{__name__}:layers",
            data=f"{__name__}:few_rows",
            loss="mse",
            weights=self.weights,
            batch=ROWS,
            microbatches=4,
            devices=self.devices,
            tensor=TensorSpec(ways=self.tensor),
            schedule="1f1b",
        )


def _weights(run: RankRun) -> list[torch.Tensor]:
    return [value for stage in run.held.values() for value in stage.versions.parameters.values()]


def _large_tensors() -> dict[int, int]:
    """Number of elements by place in memory, of tensors larger than all rows; messages' buffers of bytes left out."""
    tensors = [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]
    large = [value for value in tensors if value.is_floating_point() and _is_large(value)]
    return {value.untyped_storage().data_ptr(): value.numel() for value in large}


def _is_large(value: torch.Tensor) -> bool:
    return value.untyped_storage().nbytes() > 4 * ROWS * WIDTH
