"""How the losses of micro-batches make the loss of their batch: found by splitting some rows, and compared.

A loss may be a mean over rows, over valid targets, or a sum; or none of these, because it compares the rows of a batch
with each other (in-batch negatives, triplets), or takes a root or a ratio of what it sums (dice). Only the first three
are the same loss in micro-batches. The values are compared, and the gradients: by the outputs, where these have a row
per sample, or by the weights. A model that has not been trained may have nearly the same loss for every target, and
only its gradients show what counts. Both are in double precision, in which a term with a small factor is no rounding
error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from jellybean.pipeline.torch_gradients import gradient_digests
from jellybean.pipeline.torch_saved import TemporaryFileError, activations_in_file
from jellybean.pipeline.torch_state import (
    random_states,
    restore_random_states,
    same_random_states,
    seed_generators,
)
from jellybean.pipeline.user_errors import place_and_reason
from jellybean.training.errors import TrainingError
from jellybean.training.losses import ROWS, SUM
from jellybean.training.samples import Samples
from jellybean.training.stages.stage import LossFunction

_SINGLE = 1e-4  # relative difference of sums over many elements, in single precision
_TOLERANCE = {torch.float64: 1e-9}
# Of gradients by weights, relative to that of all weights: sums over rows, of models whose layers may compute a part in
# single precision. In double precision, and in single.
_BY_WEIGHTS = {torch.float64: 1e-6}
_SINGLE_BY_WEIGHTS = 1e-3
_MOST_ROWS = 64  # that are tried: enough for pairs of each of 30 classes; a loss over pairs takes their square
_WEIGHT_BYTES = 2**28  # of copies of the weights in double precision; of larger ones single precision must do
_OUTPUT_BYTES = 2**28  # of all outputs that are tried together

Weights = Mapping[str, torch.Tensor]  # what a loss may count -> how much each row counts


@dataclass(frozen=True)
class LossSplit:
    """The loss of some rows, and what it is by their parts. `counts`: what fits; empty: nothing does.

    `sizes`: rows of the parts, `losses`: of the parts. `zero`: the loss and its gradients are 0, so that all fits.
    `failure`: why a part has no loss, or empty. `drawn`: random numbers were drawn, so other ones for each part.
    """

    counts: tuple[str, ...]
    sizes: tuple[int, ...]
    loss: float
    losses: tuple[float, ...]
    zero: bool = False
    failure: str = ""
    drawn: bool = False

    @property
    def undecided(self) -> bool:
        """True if the rows show nothing: the loss is not finite, or 0."""
        return self.zero or not math.isfinite(self.loss)

    def __str__(self) -> str:
        """For messages."""
        parts = " and ".join(f"{loss:.6g}" for loss in self.losses)
        text = f"it is {self.loss:.6g} over {sum(self.sizes)} rows, and {parts} over {self.sizes[0]} and "
        return f"{text}{self.sizes[1]} of them{self.failure and ', where it failed'}{self.failure}"


@dataclass(frozen=True)
class _Value:
    """A loss and its gradients by outputs. `digests`: of those by weights, if any. `failure`: why there is none."""

    loss: torch.Tensor
    gradients: tuple[torch.Tensor, ...] = ()
    digests: torch.Tensor | None = None
    weights: torch.dtype = torch.float64
    failure: str = ""
    drawn: bool = False


_ValueOf = Callable[[torch.Tensor], _Value]  # row numbers -> the loss over them


def most_rows(outputs: Any, rows: int, limit: int) -> int:
    """How many rows may be tried together. `outputs`: of so many `rows`; `limit`: at most."""
    tensors = [value for value in pytree.tree_leaves(outputs) if isinstance(value, torch.Tensor)]
    a_row = max(1, sum(value.numel() for value in tensors) * 8 // rows)  # in double precision
    return max(2, min(limit, _MOST_ROWS, _OUTPUT_BYTES // int(a_row)))


def split_loss(module: nn.Module, loss: LossFunction, samples: Samples, weights: Weights) -> LossSplit:
    """What the loss of these rows counts. TrainingError if it has another value when it is called again.

    `weights`: how much each row counts, by what may count. The rows that count most come first. By the outputs, or,
    where these have no row per sample, by the model on parts of the rows.
    """
    ways: list[Callable[[torch.dtype], _ValueOf]] = [lambda dtype: _of_model(module, loss, samples, dtype)]
    if samples.targets is not None:  # otherwise the model computes its loss
        ways.insert(0, lambda dtype: _of_outputs(module, loss, samples, dtype))
    splits = []
    for way in ways:
        with suppress(_NotByRow):
            splits.append(_tried(way, weights, len(samples)))
            if not splits[-1].failure or splits[-1].counts:
                break
    return splits[-1]


class _NotByRow(Exception):
    """An output has no row per sample."""


def _tried(value_in: Callable[[torch.dtype], _ValueOf], weights: Weights, count: int) -> LossSplit:
    """The comparison in double precision, or in single where the code of the user has constants of that type."""
    try:
        return _compared(value_in(torch.float64), weights, count)
    except (TrainingError, TemporaryFileError, _NotByRow):
        raise
    except Exception:  # noqa: BLE001  # user code may raise anything, again
        return _compared(value_in(torch.float32), weights, count)


def _compared(value_of: _ValueOf, weights: Weights, count: int) -> LossSplit:
    """Compare a loss with that of two parts of its rows, for two ways to part them."""
    whole, again = value_of(torch.arange(count)), value_of(torch.arange(count))
    if torch.isfinite(whole.loss) and not torch.equal(whole.loss, again.loss):
        raise TrainingError(
            f"it gives {float(whole.loss):.6g} and then {float(again.loss):.6g} for the same outputs and targets: it "
            "keeps a state between calls, which no checkpoint holds and every trial changes: let the model compute it "
            "from buffers, by `loss: model`"
        )
    cut = count - max(1, count // 3)
    divisions = [
        (torch.arange(cut), torch.arange(cut, count)),
        (torch.arange(0, count, 2), torch.arange(1, count, 2)),
    ]
    fitting, shown = {ROWS, SUM, *weights}, None
    for parts in divisions:
        values = [_of_part(value_of, part) for part in parts]
        remaining = {what for what in fitting if _fits(whole, parts, values, _shares(what, parts, weights))}
        if shown is None or (fitting and not remaining):
            losses = tuple(float(value.loss) for value in values)
            failure = next((value.failure for value in values if value.failure), "")
            shown = LossSplit((), tuple(map(len, parts)), float(whole.loss), losses, failure=failure)
        fitting = remaining
    if shown is None:
        raise AssertionError("a loss is compared by at least one division")
    gradients = (*whole.gradients, *(() if whole.digests is None else (whole.digests,)))
    zero = not float(whole.loss) and not any(gradient.any() for gradient in gradients)
    counts = tuple(what for what in (ROWS, *weights, SUM) if what in fitting)
    return replace(shown, counts=counts, zero=zero, drawn=whole.drawn)


def _of_part(value_of: _ValueOf, rows: torch.Tensor) -> _Value:
    """The loss of a part; not a number where it fails, as with no valid target, which matters only if it counts."""
    try:
        return value_of(rows)
    except Exception as error:  # noqa: BLE001  # user code may raise anything; the reason is kept
        return _Value(torch.tensor(math.nan, dtype=torch.float64), failure=place_and_reason(error))


def _shares(what: str, parts: Sequence[torch.Tensor], weights: Weights) -> list[float]:
    """The factors of the parts' losses."""
    if what == SUM:
        return [1.0 for _ in parts]
    counts = [float(weights[what][part].sum()) if what in weights else float(len(part)) for part in parts]
    return [count / (sum(counts) or 1.0) for count in counts]


def _fits(whole: _Value, parts: Sequence[torch.Tensor], values: Sequence[_Value], shares: Sequence[float]) -> bool:
    """Whether the losses and gradients of the parts, by these shares, are those of the whole."""
    counted = [(part, value, share) for part, value, share in zip(parts, values, shares, strict=True) if share]
    if any(value.failure for _, value, _ in counted):
        return False
    tolerance = max(_TOLERANCE.get(value.loss.dtype, _SINGLE) for value in (whole, *(value for _, value, _ in counted)))
    terms = [float(value.loss) * share for _, value, share in counted]
    if not abs(sum(terms) - float(whole.loss)) <= tolerance * max(map(abs, (float(whole.loss), *terms))):
        return False
    for number, expected in enumerate(whole.gradients):
        summed = torch.zeros_like(expected)
        for part, value, share in counted:
            summed[part] = value.gradients[number] * share
        largest = float(torch.maximum(expected.abs().max(), summed.abs().max())) if expected.numel() else 0.0
        if largest and not float((summed - expected).abs().max()) <= tolerance * largest:
            return False
    return _fit_by_weights(whole, [(value, share) for _, value, share in counted])


def _fit_by_weights(whole: _Value, counted: Sequence[tuple[_Value, float]]) -> bool:
    """Whether the gradients by weights are those of the whole: projections of gradients add up as these do."""
    if whole.digests is None:
        return True
    digests = [(value.digests, share) for value, share in counted if value.digests is not None]
    summed = sum((digest[:, 1:] * share for digest, share in digests), torch.zeros_like(whole.digests[:, 1:]))
    norms = [whole.digests[:, 0].norm(), *(share * digest[:, 0].norm() for digest, share in digests)]
    tolerance = _BY_WEIGHTS.get(whole.weights, _SINGLE_BY_WEIGHTS)
    return bool((summed - whole.digests[:, 1:]).abs().max() <= tolerance * max(map(float, norms)))


def _of_outputs(module: nn.Module, loss: LossFunction, samples: Samples, dtype: torch.dtype) -> _ValueOf:
    """The loss and its gradients by rows of the model's outputs, which do not depend on how rows are parted."""
    outputs = without_traces(module, samples)
    leaves, spec = pytree.tree_flatten(outputs)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and (not leaf.dim() or len(leaf) != len(samples)):
            raise _NotByRow

    def value_of(rows: torch.Tensor) -> _Value:
        parts = [_as_type(leaf[rows], dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        inputs = [p.requires_grad_() for p in parts if isinstance(p, torch.Tensor) and p.is_floating_point()]
        with torch.enable_grad(), _repeatable() as numbers:
            value = loss(pytree.tree_unflatten(parts, spec), _target(samples, rows, dtype))
            check_number(value)
            by_input: Sequence[Any] = [None] * len(inputs)
            if value.requires_grad and inputs:
                by_input = torch.autograd.grad(value.sum(), inputs, allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(inputs, by_input, strict=True)]
        return _Value(value.detach().reshape(()), tuple(gradients), drawn=numbers.drawn)

    return value_of


def without_traces(module: nn.Module, samples: Samples) -> Any:
    """The model's outputs in training mode; its buffers stay as they are."""
    buffers = {name: value.clone() for name, value in module.named_buffers()}

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, buffers, args, kwargs)

    with torch.no_grad(), _repeatable():
        return samples.inputs.form.call(call, [value.clone() for value in samples.inputs.tensors])


def _of_model(module: nn.Module, loss: LossFunction, samples: Samples, dtype: torch.dtype) -> _ValueOf:
    """The loss by rows of the inputs, in a mode in which the rows of a batch do not change each other.

    The weights are not touched: those of the type are others. The loss comes with digests of its gradients by them.
    """
    if dtype == torch.float64 and sum(value.numel() for value in module.parameters()) * 8 > _WEIGHT_BYTES:
        raise MemoryError("copies of the weights in double precision are too large")
    state = {name: _as_type(value.detach(), dtype) for name, value in module.named_parameters()}
    weights = [state[name].requires_grad_() for name, value in module.named_parameters() if value.requires_grad]
    state |= {name: _as_type(value.clone(), dtype) for name, value in module.named_buffers()}

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, state, args, kwargs)

    def compute(rows: torch.Tensor) -> _Value:
        with torch.enable_grad(), _repeatable() as numbers, activations_in_file(state.values()):
            inputs = samples.arguments(rows)
            outputs = inputs.form.call(call, [_as_type(value, dtype).clone() for value in inputs.tensors])
            value = loss(outputs, _target(samples, rows, dtype))
            check_number(value)
            digests = gradient_digests([value.sum()], [None], weights) if value.requires_grad else []
        found = torch.stack([torch.zeros(3).double() if one is None else one for one in digests]) if digests else None
        return _Value(value.detach().reshape(()), digests=found, weights=dtype, drawn=numbers.drawn)

    def value_of(rows: torch.Tensor) -> _Value:
        try:
            with _mode(module, training=False):
                return compute(rows)
        except TemporaryFileError:
            raise
        except Exception:  # noqa: BLE001  # a model may compute its loss in training mode only
            with _mode(module, training=True):
                return compute(rows)

    return value_of


def check_number(value: Any) -> None:
    """TypeError unless a loss is a tensor of one number; its reason is for messages."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"it returned {type(value).__name__} in place of a tensor of one number")
    if value.numel() != 1:
        raise TypeError(f"it returned a tensor of shape {list(value.shape)} in place of one number")


def _target(samples: Samples, rows: torch.Tensor, dtype: torch.dtype) -> Any:
    return pytree.tree_map(lambda value: _as_type(value, dtype), samples.target(rows))


def _as_type(value: Any, dtype: torch.dtype) -> Any:
    """A floating tensor of this type; anything else as it is."""
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@dataclass
class _Numbers:
    """Whether random numbers were drawn."""

    drawn: bool = False


@contextmanager
def _repeatable() -> Iterator[_Numbers]:
    """Context in which random numbers are the same each time."""
    before, numbers = random_states(), _Numbers()
    try:
        seed_generators(0)
        seeded = random_states()
        yield numbers
        numbers.drawn = not same_random_states(seeded, random_states())
    finally:
        restore_random_states(before)


@contextmanager
def _mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Context of evaluation, or of training without what is random or a statistic of the batch."""
    before = [(part, part.training) for part in module.modules()]
    still = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    try:
        for part, _ in before:
            part.training = training and not isinstance(part, still)
        yield
    finally:
        for part, mode in before:
            part.training = mode
