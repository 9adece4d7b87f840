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
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from jellybean.pipeline.torch_gradients import gradient_digests, share_gradient_hooks
from jellybean.pipeline.torch_saved import TemporaryFileError, activations_in_file
from jellybean.pipeline.torch_state import (
    random_states,
    restore_random_states,
    same_random_states,
    seed_generators,
    state_kept,
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
_ROUNDED_BY_16_BITS = 2e-2  # most of a difference of gradients that rounding to 8 binary digits may make
_SPREAD = (1.0, 32.0, 0.03125)  # factors of rows: with margins, some are met and some are not
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
    if samples.targets is not None and len(splits) == 1 and splits[0].counts and not splits[0].undecided:
        return _also_spread(module, loss, samples, weights, splits[0])
    return splits[-1]


def _also_spread(
    module: nn.Module, loss: LossFunction, samples: Samples, weights: Weights, split: LossSplit
) -> LossSplit:
    """The split, without what does not fit for other outputs: a trained model may give some that this one does not.

    So a mean over the triplets that violate a margin is one over rows while all of them do.
    """
    try:
        other = _tried(lambda dtype: _of_outputs(module, loss, samples, dtype, spread=True), weights, len(samples))
    except TemporaryFileError:
        raise
    except Exception:  # noqa: BLE001  # the loss may take no such outputs, as of probabilities
        return split
    if other.undecided or other.failure or set(split.counts) <= set(other.counts):
        return split
    fitting = tuple(what for what in split.counts if what in other.counts)
    return replace(split if fitting else other, counts=fitting)


@dataclass(frozen=True)
class UpdateSplit:
    """The update of some rows beside that of two parts of them. `by`: difference relative to the gradients' norm.

    `parts`: row numbers. `weight`: number, among the trained weights, of the one whose gradient differs most.
    """

    parts: tuple[torch.Tensor, torch.Tensor]
    by: float
    weight: int


def split_update(
    module: nn.Module, loss: LossFunction, samples: Samples, what: str, weights: Weights
) -> UpdateSplit | None:
    """How the gradients of some rows, in training mode, differ from those of their parts; None if they do not.

    Also None where that cannot be seen: with random numbers, and of a model that fails on a part. `what`: the loss
    counts, one of ROWS, SUM and the names of `weights`.
    """
    for dtype in (torch.float64, torch.float32):
        value_of = partial(_of_model, module, loss, samples, dtype, training=True)
        try:
            return _update_apart(value_of(), len(samples), what, weights)
        except TemporaryFileError:
            raise
        except Exception:  # noqa: BLE001  # user code may have constants of single precision, or fail on a part
            continue
    return None


def _update_apart(value_of: _ValueOf, count: int, what: str, weights: Weights) -> UpdateSplit | None:
    rows = torch.arange(count)
    whole = value_of(rows)
    for parts in _divisions(count):
        shares = _shares(what, parts, weights)
        values = [(value_of(part), share) for part, share in zip(parts, shares, strict=True) if share]
        if any(value.drawn or value.digests is None for value in (whole, *(value for value, _ in values))):
            return None
        if _fit_by_weights(whole, values):
            continue
        if not _fit_by_weights(whole, [(value_of(rows), 1.0)]):
            return None
        apart, norm = _apart_by_weights(whole, values)
        largest = apart.abs().amax(dim=1)
        found = UpdateSplit(parts, float(largest.max()) / norm, int(largest.argmax()))
        if found.by > _ROUNDED_BY_16_BITS:
            return found
        with _ShortTypes() as short:
            value_of(rows)
        return None if short.seen else found
    return None


def _divisions(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two ways to divide rows: a third at the end, and every other one."""
    cut, rows = count - max(1, count // 3), torch.arange(count)
    return [(rows[:cut], rows[cut:]), (rows[::2], rows[1::2])]


class _ShortTypes(TorchDispatchMode):  # type: ignore[misc]  # mypy does not follow torch
    """Sees whether an operation computes in 16 bits, or fewer."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = (one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor))
        self.seen |= any(one.is_floating_point() and one.dtype.itemsize <= 2 for one in tensors)
        return result


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
    fitting, shown = {ROWS, SUM, *weights}, None
    for parts in _divisions(count):
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
    """Whether the gradients by weights are those of the whole."""
    if whole.digests is None:
        return True
    apart, norm = _apart_by_weights(whole, counted)
    return bool(apart.abs().max() <= _BY_WEIGHTS.get(whole.weights, _SINGLE_BY_WEIGHTS) * norm)


def _apart_by_weights(whole: _Value, counted: Sequence[tuple[_Value, float]]) -> tuple[torch.Tensor, float]:
    """(difference of the gradients' projections by weight, largest norm): projections add up as gradients do."""
    if whole.digests is None:
        raise AssertionError("a loss without digests is not compared by weights")
    digests = [(value.digests, share) for value, share in counted if value.digests is not None]
    summed = sum((digest[:, 1:] * share for digest, share in digests), torch.zeros_like(whole.digests[:, 1:]))
    norms = [whole.digests[:, 0].norm(), *(share * digest[:, 0].norm() for digest, share in digests)]
    return summed - whole.digests[:, 1:], max(map(float, norms))


def _of_outputs(
    module: nn.Module, loss: LossFunction, samples: Samples, dtype: torch.dtype, *, spread: bool = False
) -> _ValueOf:
    """The loss and its gradients by rows of the model's outputs, which do not depend on how rows are parted.

    `spread`: the outputs of each row are multiplied by a small or a large factor.
    """
    outputs = without_traces(module, samples)
    leaves, spec = pytree.tree_flatten(outputs)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and (not leaf.dim() or len(leaf) != len(samples)):
            raise _NotByRow

    if spread:
        leaves = [_spread(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

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


def _spread(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    factors = torch.tensor(_SPREAD, dtype=value.dtype).repeat(-(-len(value) // len(_SPREAD)))[: len(value)]
    return value * factors.reshape(-1, *[1] * (value.dim() - 1))


def without_traces(module: nn.Module, samples: Samples) -> Any:
    """The model's outputs in training mode; its buffers stay as they are."""
    buffers = {name: value.clone() for name, value in module.named_buffers()}

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, buffers, args, kwargs)

    with torch.no_grad(), _repeatable():
        return samples.inputs.form.call(call, [value.clone() for value in samples.inputs.tensors])


def own_weights(module: nn.Module, loss: LossFunction, samples: Samples) -> list[list[int]]:
    """Shapes of the leaves that a loss computes with, and that are neither outputs nor weights of the model."""
    known = {id(value) for value in module.parameters()}
    with torch.enable_grad(), _repeatable():
        outputs = pytree.tree_map(_as_leaf, without_traces(module, samples))
        known |= {id(value) for value in pytree.tree_leaves(outputs)}
        try:
            value = loss(outputs, samples.target(slice(None)))
        except Exception:  # noqa: BLE001  # it may fail on few rows; the trial of the model has run it
            return []
    return [list(leaf.shape) for leaf in _graph_leaves(value) if id(leaf) not in known]


def _as_leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.is_floating_point() or value.is_complex())


def _graph_leaves(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """The leaves of autograd's graph that get a gradient, each once."""
    waiting, seen = [value.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [following for following, _ in node.next_functions]


def _of_model(
    module: nn.Module, loss: LossFunction, samples: Samples, dtype: torch.dtype, *, training: bool = False
) -> _ValueOf:
    """The loss by rows of the inputs, in a mode in which the rows of a batch do not change each other.

    `training`: with the model's own code for training, hooks of weights included, but for dropout and batch norm.
    The weights are not touched: those of the type are others. The loss comes with digests of its gradients by them.
    """
    if dtype == torch.float64 and sum(value.numel() for value in module.parameters()) * 8 > _WEIGHT_BYTES:
        raise MemoryError("copies of the weights in double precision are too large")
    given = dict(module.named_parameters())
    state = {name: _as_type(value.detach(), dtype) for name, value in given.items()}
    weights = [state[name].requires_grad_() for name, value in given.items() if value.requires_grad]
    for name, value in given.items() if training else ():
        share_gradient_hooks(state[name], value)

    def compute(rows: torch.Tensor) -> _Value:
        tensors = state | {name: _as_type(value.clone(), dtype) for name, value in module.named_buffers()}

        def call(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(module, tensors, args, kwargs)

        with torch.enable_grad(), _repeatable() as numbers, activations_in_file(tensors.values()):
            inputs = samples.arguments(rows)
            outputs = inputs.form.call(call, [_as_type(value, dtype).clone() for value in inputs.tensors])
            value = loss(outputs, _target(samples, rows, dtype))
            check_number(value)
            digests = gradient_digests([value.sum()], [None], weights) if value.requires_grad else []
        found = torch.stack([torch.zeros(3).double() if one is None else one for one in digests]) if digests else None
        return _Value(value.detach().reshape(()), digests=found, weights=dtype, drawn=numbers.drawn)

    def value_of(rows: torch.Tensor) -> _Value:
        if training:
            with state_kept(module), _mode(module, training=True):
                return compute(rows)
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
