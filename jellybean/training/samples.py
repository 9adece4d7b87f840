"""Rows of training data: arguments of the model, targets of the loss, and how much each row counts in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from jellybean.pipeline.torch_trace import CallArguments
from jellybean.training.errors import TrainingError
from jellybean_agent import InvalidInputError, plain_array

IGNORED = -100  # a target with this value does not count, as in torch's losses
SHAPE = (
    "it must return {'train': (inputs, targets), 'test': (inputs, targets)}, one row per sample; inputs may be an "
    "array, a tuple of arrays or a dict of them, and with `loss: model` there is only this dict; or for each a "
    "Dataset, a DataLoader or a stream of such rows"
)
Rows: TypeAlias = torch.Tensor | slice  # a tensor copies the rows, a slice does not


@dataclass(frozen=True)
class Samples:
    """Samples, one per row of every tensor.

    `inputs`: arguments of the model. `targets`: second argument of the loss; None if the model computes its loss.
    `weights`: how much each row counts in a mean loss, for example its number of valid tokens; None: all the same.
    """

    inputs: CallArguments
    targets: CallArguments | None
    weights: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs.tensors[0])

    def take(self, rows: Rows) -> Samples:
        """Some of the samples."""
        targets = self.targets
        if targets is not None:
            targets = replace(targets, tensors=tuple(value[rows] for value in targets.tensors))
        return Samples(self.arguments(rows), targets, None if self.weights is None else self.weights[rows])

    def arguments(self, rows: Rows) -> CallArguments:
        """The model's arguments of some rows."""
        return CallArguments(tuple(value[rows] for value in self.inputs.tensors), self.inputs.names, self.inputs.form)

    def target(self, rows: Rows, device: torch.device | None = None) -> Any:
        """The loss' second argument of some rows, on a device: a copy, which the loss may overwrite."""
        if self.targets is None:
            return None
        copies = [torch.as_tensor(value[rows], device=device).clone() for value in self.targets.tensors]
        args, _ = self.targets.form.nest(copies)
        return args[0]

    def weight(self, rows: Rows) -> float:
        """How much some rows count in a mean loss."""
        if self.weights is not None:
            return float(self.weights[rows].sum())
        return float(len(range(len(self))[rows]) if isinstance(rows, slice) else len(rows))

    @property
    def classes(self) -> torch.Tensor | None:
        """The targets, if they are one tensor of class numbers."""
        if self.targets is None or len(self.targets.tensors) != 1 or self.targets.tensors[0].is_floating_point():
            return None
        return self.targets.tensors[0]


def read_samples(given: Any, name: str, part: str, *, targets: bool, numbers: Sequence[int] | None = None) -> Samples:
    """Check what a data function returned for `part`. TrainingError if it is malformed.

    `targets`: False if the model computes its loss from its inputs. `numbers`: of the rows, for messages.
    """
    where = f"{name}, {part}"
    if targets and (not isinstance(given, tuple | list) or len(given) != 2):
        raise TrainingError(f"{where}: {SHAPE}; it has {_describe(given)}")
    inputs = given[0] if targets else given
    samples = Samples(_inputs(inputs, where), _targets(given[1], where) if targets else None)
    tensors = [*samples.inputs.tensors, *(samples.targets.tensors if samples.targets is not None else ())]
    if not samples.inputs.tensors:
        raise TrainingError(f"{where}: the inputs have no arrays; {SHAPE}")
    if any(not value.dim() for value in tensors) or not len(tensors[0]) or len({len(value) for value in tensors}) > 1:
        shapes = [str(list(value.shape)) for value in tensors]
        inputs_shapes = " and ".join(shapes[: len(samples.inputs.tensors)])
        targets_shapes = ", ".join(shapes[len(samples.inputs.tensors) :])
        of_targets = f" and targets of shape {targets_shapes}" if targets_shapes else ""
        raise TrainingError(f"{where}: inputs of shape {inputs_shapes}{of_targets}; {SHAPE}")
    for value in samples.inputs.tensors:
        if value.is_floating_point() and not torch.isfinite(value).all():
            row = int(torch.nonzero(~torch.isfinite(value.flatten(1)).all(1))[0])
            row = numbers[row] if numbers is not None else row
            raise TrainingError(f"{where}: row {row} of the inputs has nan or infinity")
    return samples


def _inputs(given: Any, where: str) -> CallArguments:
    if isinstance(given, Mapping):
        kwargs = {name: _array(value, where) for name, value in given.items()}
        if not all(isinstance(name, str) for name in kwargs):
            raise TrainingError(f"{where}: the inputs' names must be text; {SHAPE}")
        return CallArguments.of((), kwargs)
    if isinstance(given, tuple) and given and all(isinstance(value, torch.Tensor | np.ndarray) for value in given):
        return CallArguments.of([_array(value, where) for value in given])
    return CallArguments.of([_tensor(given, where)])


def _targets(given: Any, where: str) -> CallArguments:
    if isinstance(given, Mapping):
        return CallArguments.of([{name: _class_numbers(_tensor(value, where)) for name, value in given.items()}])
    if isinstance(given, tuple) and given and all(isinstance(value, torch.Tensor | np.ndarray) for value in given):
        return CallArguments.of([tuple(_class_numbers(_tensor(value, where)) for value in given)])
    return CallArguments.of([_class_numbers(_tensor(given, where))])


def _array(value: Any, where: str) -> Any:
    """An argument: a tensor with a row per sample, or a constant (None, a number, a text) that all samples share."""
    return value if value is None or isinstance(value, bool | int | float | str) else _tensor(value, where)


def _tensor(value: Any, where: str) -> torch.Tensor:
    try:
        return torch.as_tensor(plain_array(value) if isinstance(value, np.ndarray) else value)
    except InvalidInputError as error:
        raise TrainingError(f"{where}: {error}") from error
    except (TypeError, ValueError, RuntimeError) as error:
        if text := _first_text(value):
            raise TrainingError(
                f"{where}: there are texts in place of numbers, such as '{text:.40}': number classes by "
                "numpy.unique(texts, return_inverse=True)[1], and turn inputs into tokens"
            ) from error
        raise TrainingError(f"{where}: {SHAPE}, as arrays of numbers: {error}") from error


def _first_text(value: Any) -> str:
    """The first item of an array, if it is a text; otherwise empty."""
    try:
        items = np.asarray(value)
    except ValueError:  # rows of different lengths
        return ""
    return str(items.flat[0]) if items.size and isinstance(items.flat[0], str) else ""


def _class_numbers(value: torch.Tensor) -> torch.Tensor:
    """Integers as int64, which torch's losses need."""
    return value if value.is_floating_point() or value.is_complex() else value.long()


def _describe(given: Any) -> str:
    return f"{len(given)} of them" if isinstance(given, tuple | list) else f"a {type(given).__name__}"
