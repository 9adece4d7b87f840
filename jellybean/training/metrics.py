"""What is measured on the test rows, as sums that ranks can add: by name, or by a user's function or class."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from jellybean.documents.training import TrainingDocument, metric_name
from jellybean.errors import JellyBeanError
from jellybean.pipeline.user_errors import place_and_reason
from jellybean.pipeline.user_functions import load_function, load_object
from jellybean.training.errors import TrainingError
from jellybean.training.losses import class_dimension, class_scores
from jellybean.training.samples import IGNORED
from jellybean.training.stages.stage import LossFunction


class Measure(Protocol):
    """A measure of the model on the test rows, as sums that ranks can add."""

    def add(self, outputs: Any, target: Any, weight: float) -> None:
        """Count one micro-batch. `weight`: how much its rows count in a mean loss."""

    def totals(self) -> list[float]:
        """The sums so far; as many on every rank."""

    def value(self, totals: Sequence[float]) -> float | None:
        """The measure of all ranks' sums; None if it is not defined for this data."""


Measures = Mapping[str, Callable[[], Measure]]  # name -> makes the measure of one pass over the test rows


def load_metrics(document: TrainingDocument, directory: Path, loss: LossFunction) -> Measures:
    """The document's metrics."""
    measures: dict[str, Callable[[], Measure]] = {}
    for text in document.metrics:
        match text:
            case "accuracy":
                measures[text] = Accuracy
            case "perplexity":
                measures[text] = lambda: Perplexity(loss)
            case _:
                measures[metric_name(text)] = _of_user(text, directory)
    return measures


def check_metrics(measures: Measures, outputs: Any, target: Any) -> None:
    """Try every metric on one micro-batch. TrainingError if it gives no number."""
    for name, make in measures.items():
        measure = make()
        before = measure.totals()
        measure.add(outputs, target, 1.0)
        totals = measure.totals()
        if len(before) != len(totals):
            raise TrainingError(
                f"the metric {name} has {len(before)} totals before it has seen rows and {len(totals)} afterwards: "
                "processes without rows must have as many, as zeros"
            )
        value = measure.value(totals)
        if value is not None and not isinstance(value, int | float):
            raise TrainingError(f"the metric {name} gives {type(value).__name__}; it must give a number")


@dataclass
class MeanLoss:
    """The mean loss over the test rows."""

    loss: LossFunction
    total: float = 0.0
    weight: float = 0.0

    def add(self, outputs: Any, target: Any, weight: float) -> None:
        if weight:
            self.total += float(self.loss(outputs, target)) * weight
            self.weight += weight

    def totals(self) -> list[float]:
        return [self.total, self.weight]

    def value(self, totals: Sequence[float]) -> float:
        return totals[0] / totals[1] if totals[1] else 0.0


class SummedLoss(MeanLoss):
    """The loss over the test rows, where it is a sum over them."""

    def add(self, outputs: Any, target: Any, weight: float) -> None:
        super().add(outputs, target, 1.0)

    def value(self, totals: Sequence[float]) -> float:
        return totals[0]


class Perplexity(MeanLoss):
    """exp of the mean cross-entropy, which is over valid tokens."""

    def value(self, totals: Sequence[float]) -> float:
        mean = super().value(totals)
        return math.exp(mean) if mean < math.log(torch.finfo(torch.float64).max) else math.inf


@dataclass
class Accuracy:
    """Percent of the targets that the highest score names; None if targets are no classes of the scores."""

    right: int = 0
    counted: int = 0

    def add(self, outputs: Any, target: Any, weight: float) -> None:
        if not isinstance(target, torch.Tensor) or target.is_floating_point():
            return
        try:
            right, counted = correct(class_scores(outputs), target)
        except TrainingError:  # integers that a loss of one's own takes need not be classes
            return
        self.right += right
        self.counted += counted

    def totals(self) -> list[float]:
        return [float(self.right), float(self.counted)]

    def value(self, totals: Sequence[float]) -> float | None:
        return 100.0 * totals[0] / totals[1] if totals[1] else None


@dataclass
class UserMean:
    """The mean of a user's function of outputs and targets over micro-batches, weighted as the loss is."""

    function: Callable[[Any, Any], Any]
    name: str
    total: float = 0.0
    weight: float = 0.0

    def add(self, outputs: Any, target: Any, weight: float) -> None:
        if not weight:
            return
        with _named_errors(self.name):
            value = self.function(outputs, target)
        self.total += _number(value, self.name) * weight
        self.weight += weight

    def totals(self) -> list[float]:
        return [self.total, self.weight]

    def value(self, totals: Sequence[float]) -> float | None:
        return totals[0] / totals[1] if totals[1] else None


@dataclass
class UserSums:
    """A user's class that keeps sums, for what is no mean over micro-batches (F1)."""

    sums: Any
    name: str

    def add(self, outputs: Any, target: Any, weight: float) -> None:
        with _named_errors(self.name):
            self.sums.add(outputs, target)

    def totals(self) -> list[float]:
        with _named_errors(self.name):
            totals = list(self.sums.totals())
        return [_number(total, self.name) for total in totals]

    def value(self, totals: Sequence[float]) -> float | None:
        with _named_errors(self.name):
            value = self.sums.value(list(totals))
        return None if value is None else _number(value, self.name)


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Context in which exceptions of a user's metric become TrainingErrors with the metric's name and the line."""
    try:
        yield
    except TrainingError:
        raise
    except JellyBeanError as error:  # of a loaded function; it has the name and the line
        raise TrainingError(f"the metric {error}") from error
    except Exception as error:  # user code may raise anything
        raise TrainingError(f"the metric {name} failed{place_and_reason(error)}") from error


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TrainingError(f"the metric {name} gives {type(value).__name__}; it must give a number") from error


def _of_user(text: str, directory: Path) -> Callable[[], Measure]:
    place, _, name = text.rpartition(":")
    if not inspect.isclass(load_object(place, name, directory)):
        function = load_function(place, name, directory)
        return lambda: UserMean(function, text)
    make = load_function(place, name, directory)
    missing = [method for method in ("add", "totals", "value") if not hasattr(make(), method)]
    if missing:
        raise TrainingError(
            f"the metric {text} is a class without {missing[0]}(): it needs add(outputs, targets), totals() and "
            "value(totals)"
        )
    return lambda: UserSums(make(), text)


def correct(scores: torch.Tensor, targets: torch.Tensor) -> tuple[int, int]:
    """(targets that the highest score names, targets that count)."""
    counts = targets != IGNORED
    chosen = scores.argmax(class_dimension(scores, targets))
    return int(((chosen == targets) & counts).sum()), int(counts.sum())
