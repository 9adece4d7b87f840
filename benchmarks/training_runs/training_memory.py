"""Peak memory of each process of a pipeline, beside its share of weights, gradients, states and activations."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic

if TYPE_CHECKING:
    from jellybean.documents.training import TrainingDocument
    from jellybean.training.setup import RankRun

LAYERS, WIDTH, TOKENS, ROWS, DEVICES, MICROBATCHES = 14, 768, 64, 32, 4, 8
MIB = 2.0**20


@benchmark
def training_memory(smoke: bool) -> Result:
    """Peak memory of each of four processes that train a model of 394 MB, beside their shares."""
    from tests.integration.training.ranks import run_ranks

    os.environ["OMP_NUM_THREADS"] = "1"
    layers, devices = (4, 2) if smoke else (LAYERS, DEVICES)
    rows = []
    with TemporaryDirectory() as folder:
        _write_weights(Path(folder), layers)
        for weights in (True, False):
            (found,) = run_ranks(devices, [TrainAnEpoch(folder, layers, devices, weights)], seconds=900)
            rows += [
                (
                    "read from a file" if weights else "made by the function",
                    str(rank),
                    f"{used.share_bytes / MIB:,.0f}",
                    f"{used.peak_bytes / MIB:,.0f}",
                    f"{used.peak_bytes / used.share_bytes:.2f}",
                )
                for rank, used in enumerate(found)
            ]
    return Result(
        title="Memory of training processes",
        topic=Topic.TRAINING,
        method=f"{layers} transformer layers of width {WIDTH} (394 MB of weights) in {devices} stages, AdamW, "
        f"1F1B with {MICROBATCHES} micro-batches; one epoch with loading, profiling, evaluation, a checkpoint and "
        "collecting the trained model. Peak resident memory less that of Python with torch and an optimizer (which "
        "imports 73 MiB of torch's compiler) before the model is loaded.",
        reference="the process' share: weights, gradients and two optimizer states of its stage, and the activations "
        "of the micro-batches that it holds at most.",
        tables=(Table.of(("weights", "process", "share (MiB)", "peak (MiB)", "ratio"), rows),),
    )


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of one process."""

    share_bytes: float
    peak_bytes: float


def model(layers: int) -> Any:
    from torch import nn

    return nn.Sequential(
        *[nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(layers)]
    )


def small_model() -> Any:
    return model(4)


def whole_model() -> Any:
    return model(LAYERS)


def data() -> dict[str, Any]:
    import torch

    rows = torch.randn(ROWS, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    return {"train": (rows, rows), "test": (rows[:8], rows[:8])}


def _write_weights(folder: Path, layers: int) -> None:
    from safetensors.torch import save_file

    save_file(model(layers).state_dict(), folder / "weights.safetensors")


@dataclass(frozen=True)
class TrainAnEpoch:
    """One epoch of one rank, as `jellybean train` runs it."""

    folder: str
    layers: int
    devices: int
    weights: bool

    def __call__(self, rank: int) -> MemoryUse:
        import torch

        from jellybean.training.checkpoints.checkpoint import save_model
        from jellybean.training.hand_back import trained_model
        from jellybean.training.processes.ranks import Rank
        from jellybean.training.setup import set_up_run
        from jellybean.training.train import train

        _load_torch()
        before = _restart_peak()
        document, folder = self._document(), Path(self.folder)
        run = set_up_run(document, folder, Rank(rank, self.devices, torch.device("cpu")))
        activations = LiveActivations(run)
        with torch.autograd.graph.saved_tensors_hooks(activations.pack, lambda held: held.tensor):
            train(run, document, folder / str(self.weights), lambda epoch: None, lambda text: None)
        share = 4.0 * sum(map(_bytes, _weights(run))) + activations.peak_bytes
        module = trained_model(run, document, folder)
        if module is not None:
            save_model(module, folder)
        return MemoryUse(share, _peak_bytes() - before)

    def _document(self) -> TrainingDocument:
        from jellybean.documents.training import LossSpec, OptimizerSpec, TrainingDocument

        return TrainingDocument(
            kind="Training",
            model=f"{__name__}:{'whole' if self.layers == LAYERS else 'small'}_model",
            weights="weights.safetensors" if self.weights else None,
            data=f"{__name__}:data",
            loss=LossSpec(function="mse"),
            epochs=1,
            batch=ROWS,
            microbatches=MICROBATCHES,
            optimizer=OptimizerSpec(name="adamw", lr=1e-4),
            devices=self.devices,
            schedule="1f1b",
        )


class LiveActivations:
    """Counts the bytes that autograd holds for backward passes, weights left out."""

    def __init__(self, run: RankRun) -> None:
        self._weights = {value.untyped_storage().data_ptr() for value in _weights(run)}
        self._holders: Counter[int] = Counter()
        self._bytes = self.peak_bytes = 0.0

    def pack(self, tensor: Any) -> HeldTensor:
        """Hook of autograd: a tensor is saved."""
        return HeldTensor(tensor, self)

    def count(self, tensor: Any, change: int) -> None:
        """A tensor is held (1) or no longer held (-1)."""
        place = tensor.untyped_storage().data_ptr()
        before, self._holders[place] = self._holders[place], self._holders[place] + change
        if place not in self._weights and (before == 0 or before + change == 0):
            self._bytes += change * tensor.untyped_storage().nbytes()
            self.peak_bytes = max(self.peak_bytes, self._bytes)


class HeldTensor:
    """A tensor that autograd saved, counted while it lives."""

    def __init__(self, tensor: Any, live: LiveActivations) -> None:
        self.tensor, self._live = tensor, live
        live.count(tensor, 1)

    def __del__(self) -> None:
        self._live.count(self.tensor, -1)


def _load_torch() -> None:
    """Make torch allocate what it allocates once. Its optimizers import its compiler: 73 MiB of a process."""
    import torch

    layer = torch.nn.Linear(8, 8)
    layer(torch.ones(2, 8)).sum().backward()
    torch.optim.AdamW(layer.parameters()).step()


def _weights(run: RankRun) -> list[Any]:
    return [value for stage in run.held.values() for value in stage.versions.parameters.values()]


def _bytes(value: Any) -> int:
    return int(value.numel() * value.element_size())


def _restart_peak() -> float:
    """Set the process' peak to its present memory; returns it in bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return _peak_bytes()


def _peak_bytes() -> float:
    line = next(
        line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM")
    )
    return 1024.0 * float(line.split()[1])
