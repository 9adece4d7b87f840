"""A document's model trained by the ranks of a pool, and by plain torch on one process, to be compared."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jellybean.documents import TrainingDocument
from jellybean.training import Rank, set_up_run, trained_model
from jellybean.training.epoch import run_epoch
from jellybean.training.hand_back import write_model
from jellybean.training.saving import run_folder
from jellybean.training.train import train

State = dict[str, torch.Tensor]


class InterruptedError(Exception):
    """A run was interrupted on purpose."""


@dataclass(frozen=True)
class Training:
    """Train a document in `folder`, where it resumes from earlier runs; returns the model's state on the first rank.

    `settings`: of the document. `stop_after`: updates of the first epoch after whose checkpoint the run is interrupted.
    """

    folder: str
    settings: Mapping[str, Any]
    stop_after: int | None = None

    def __call__(self, rank: int) -> State | None:
        document = document_of(self.settings)
        place = Rank(rank, document.devices, torch.device("cpu"), tensor=document.tensor.ways)
        run = set_up_run(document, Path(self.folder), place)
        epoch = run_epoch if self.stop_after is None else partial(_interrupted, self.stop_after)
        try:
            train(run, document, Path(self.folder), lambda _: None, lambda _: None, epoch)
        except InterruptedError:
            run.transport.close()
            return None
        module = trained_model(run, document, Path(self.folder))
        if module is None:
            return None
        module = write_model(module, run_folder(Path(self.folder)))
        return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _interrupted(after: int, run: Any, document: Any, start: Any, lr: Any, save: Callable[[list[float]], None]) -> Any:
    def save_and_stop(losses: list[float]) -> None:
        save(losses)
        if len(losses) == after:
            raise InterruptedError

    return run_epoch(run, document, start, lr, save_and_stop)


def document_of(settings: Mapping[str, Any]) -> TrainingDocument:
    """The document with these settings: plain SGD, unless they name another optimizer."""
    defaults = {"kind": "Training", "epochs": 3, "batch": 8, "optimizer": {"name": "sgd", "lr": 0.1}}
    return TrainingDocument.model_validate({**defaults, **settings})


@dataclass(frozen=True)
class PlainTorch:
    """The training of a document by plain torch, from its definition: all micro-batches of an update one by one.

    `count`: (inputs, targets) of some rows -> how much they count in the loss; None: each row the same.
    """

    settings: Mapping[str, Any]
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    options: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.1})
    count: Callable[[Any, Any], float] | None = None

    def state(self) -> State:
        """The model's state at the end."""
        module, _ = self.trained()
        return {name: value.detach().clone() for name, value in module.state_dict().items()}

    def trained(self) -> tuple[nn.Module, State]:
        """(the model, its state before the first update)."""
        document = document_of(self.settings)
        torch.manual_seed(document.seed)
        module = _called(document.model).train()
        start = {name: value.detach().clone() for name, value in module.state_dict().items()}
        data = _called(document.data)["train"]
        inputs, targets = (data, None) if isinstance(data, dict) else data
        loss = _loss(document.loss.function)
        weights = [value for value in module.parameters() if value.requires_grad]
        optimizer = self.optimizer(weights, **self.options)
        parts = document.microbatches * document.replicas
        for epoch in range(document.epochs):
            order = torch.randperm(_count_rows(inputs), generator=torch.Generator().manual_seed(epoch))
            for rows in order.split(document.batch):
                if len(rows) < parts:
                    continue
                optimizer.zero_grad()
                split = [(_rows(inputs, part), _rows(targets, part)) for part in rows.tensor_split(parts)]
                counts = [self._count(*part) for part in split]
                for (own, wanted), count in zip(split, counts, strict=True):
                    outputs = module(**own) if isinstance(own, dict) else module(*own)
                    (loss(outputs, *wanted) * (count / sum(counts))).backward()
                if document.clip is not None:
                    clip(weights, document.clip)
                optimizer.step()
        return module, start

    def _count(self, inputs: Any, targets: Any) -> float:
        return self.count(inputs, targets) if self.count is not None else float(_count_rows(inputs))


def _loss(function: str) -> Callable[..., torch.Tensor]:
    known = {"mse": nn.functional.mse_loss, "cross_entropy": _cross_entropy, "model": _computed_loss}
    return known[function] if function in known else _object(function)


def _cross_entropy(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    scores = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    classes_last = targets.dim() > 1 and scores.shape[:-1] == targets.shape
    return nn.functional.cross_entropy(scores.movedim(-1, 1) if classes_last else scores, targets)


def _computed_loss(outputs: Any) -> torch.Tensor:
    return outputs if isinstance(outputs, torch.Tensor) else outputs.loss


def clip(weights: list[nn.Parameter], most: float) -> None:
    """Clip by the norm of all gradients, also sparse ones, which torch's function does not take."""
    gradients = [value.grad for value in weights if value.grad is not None]
    norm = torch.stack([_numbers(one).norm() for one in gradients]).norm()
    for gradient in gradients:
        gradient.mul_(min(1.0, most / (float(norm) + 1e-6)))


def _numbers(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _count_rows(inputs: Any) -> int:
    values = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else (inputs,)
    return next(len(value) for value in values if isinstance(value, torch.Tensor))


def _rows(values: Any, part: torch.Tensor) -> Any:
    """Some rows of a dict, in which all but tensors are the same for all, or of a tuple of tensors."""
    if values is None:
        return ()
    if isinstance(values, dict):
        return {name: value[part] if isinstance(value, torch.Tensor) else value for name, value in values.items()}
    return tuple(value[part] for value in (values if isinstance(values, tuple) else (values,)))


def _called(name: str) -> Any:
    return _object(name)()


def _object(name: str) -> Any:
    place, _, function = name.rpartition(":")
    return getattr(importlib.import_module(place), function)


_SMALL = 1e-6  # a tensor below it is 0 but for rounding, as a bias before batch norm that begins at 0


def difference(found: State, expected: State) -> tuple[float, str]:
    """(largest difference relative to the largest number of the tensor, its name); infinity if one is missing."""
    worst = 0.0, ""
    for name in found.keys() ^ expected.keys():
        return float("inf"), name
    for name, value in expected.items():
        if found[name].shape != value.shape or found[name].dtype != value.dtype:
            return float("inf"), name
        wide = torch.complex128 if value.is_complex() else torch.float64
        far = (found[name].to(wide) - value.to(wide)).abs().max() if value.numel() else torch.zeros(())
        scale = max(_SMALL, float(value.to(wide).abs().max())) if value.numel() else 1.0
        relative = float("inf") if not far.isfinite() else float(far) / scale
        worst = max(worst, (relative, name))
    return worst
