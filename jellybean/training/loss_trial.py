"""What the document's loss counts: as declared, or found on rows that cover what occurs; refused where it cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from jellybean.documents.training import TrainingDocument
from jellybean.documents.training.loss import LossSpec
from jellybean.pipeline.torch_state import state_kept
from jellybean.pipeline.user_errors import place_and_reason
from jellybean.training.data.loading import TrainingData
from jellybean.training.data.rules import CountFunction, RowRules, row_counts
from jellybean.training.errors import TrainingError
from jellybean.training.loss_counts import LossSplit, most_rows, own_weights, split_loss, without_traces
from jellybean.training.losses import (
    BATCH,
    FUNCTION,
    MODEL,
    ROWS,
    SUM,
    TARGETS,
    LabelTargets,
    class_labels,
    valid_targets,
)
from jellybean.training.samples import Samples
from jellybean.training.stages.stage import LossFunction

_LABELS = {"labels": LabelTargets(shifted=False), "shifted labels": LabelTargets(shifted=True)}
_SIZED_ROWS = 3  # by which the size of an output is measured


@dataclass(frozen=True)
class JudgedLoss:
    """The rules of rows with what counts in the loss. `warning`: what the user must know of it, or empty."""

    rules: RowRules
    warning: str = ""


@dataclass(frozen=True)
class LossTrial:
    """What is tried: a loss of the user, or of the model. `count`: the function that the document declares.

    `servers_workers`: of a run with parameter servers, each of which has a part of an update's rows.
    """

    module: nn.Module
    data: TrainingData
    loss: LossFunction
    count: CountFunction | None
    servers_workers: int = 1

    def judge(self, document: TrainingDocument, rules: RowRules) -> JudgedLoss:
        """Split a batch once. TrainingError if micro-batches or replicas would change the loss.

        `rules`: as known so far; of a model that computes its loss, with its labels if they are targets of its scores.
        """
        if document.loss.function in ("cross_entropy", "mse"):
            return JudgedLoss(rules)
        with state_kept(self.module):
            samples = self._rows(document)
            split = self._split(document, samples, self._weights(samples))
            untrained = self._untrained(document, samples)
        if document.loss.counts is not None:
            judged = _declared(document.loss, rules, split, samples)
        elif split.undecided:
            judged = self._undecided(document, rules, split, samples)
        else:
            judged = self._chosen(document, rules, split, samples)
        if judged.rules.counts == SUM and "perplexity" in document.metrics:
            raise TrainingError(f"metrics: perplexity is exp of a mean, and {document.loss} is a sum: remove it")
        return replace(judged, warning="; ".join(filter(None, (judged.warning, untrained))))

    def _untrained(self, document: TrainingDocument, samples: Samples) -> str:
        """That a loss computes with weights of its own, which no optimizer has; empty if it does not."""
        if document.loss.function == MODEL:
            return ""
        shapes = own_weights(self.module, self.loss, samples.take(slice(_SIZED_ROWS)))
        if not shapes:
            return ""
        return (
            f"loss: {document.loss} computes with weights of its own (of {', '.join(map(str, shapes[:3]))}"
            f"{', ...' if len(shapes) > 3 else ''}), which are not trained: make it a part of the model, and write "
            "`loss: model`; requires_grad_(False) says that they are constants"
        )

    def _split(self, document: TrainingDocument, samples: Samples, weights: Mapping[str, torch.Tensor]) -> LossSplit:
        try:
            return split_loss(self.module, self.loss, samples, weights)
        except TrainingError as error:
            raise TrainingError(f"loss: {document.loss}: {error}") from error
        except Exception as error:  # user code may raise anything; the trial of the model names the line
            raise TrainingError(
                f"loss: {document.loss} failed on a batch of {len(samples)} rows{place_and_reason(error)}"
            ) from error

    def _rows(self, document: TrainingDocument) -> Samples:
        """Rows of a batch that cover what occurs, as many as memory allows."""
        few = self.data.train.example(_SIZED_ROWS)
        limit = min(document.batch, self.data.train.rows)
        return self.data.train.sample(most_rows(without_traces(self.module, few), len(few), limit))

    def _weights(self, samples: Samples) -> Mapping[str, torch.Tensor]:
        """What a loss may count beside rows, and how much each row counts by it."""
        if self.count is not None:
            return {FUNCTION: row_counts(self.count, samples)}
        if samples.targets is not None:
            return {TARGETS: valid_targets(samples)}
        labels = class_labels(samples.inputs)
        if labels is None:
            return {}
        ways = _LABELS if labels.dim() > 1 else {"labels": _LABELS["labels"]}
        return {name: valid_targets(replace(samples, targets=way.of(samples.inputs))) for name, way in ways.items()}

    def _chosen(self, document: TrainingDocument, rules: RowRules, split: LossSplit, samples: Samples) -> JudgedLoss:
        labelled = next((name for name, way in _LABELS.items() if way == rules.labels and name in split.counts), None)
        if not split.counts:
            return self._over_batch(document, rules, split)
        if labelled is not None:
            return JudgedLoss(replace(rules, counts=TARGETS))
        rules = replace(rules, labels=None)
        counts = split.counts[0]
        if counts in _LABELS:
            return JudgedLoss(replace(rules, counts=TARGETS, labels=_LABELS[counts]))
        warning = _unmatched(document, samples)
        uniform = float(valid_targets(samples)[0]) if counts == ROWS and len(split.counts) > 1 else None
        return JudgedLoss(replace(rules, counts=counts, uniform=uniform), warning)

    def _over_batch(self, document: TrainingDocument, rules: RowRules, split: LossSplit) -> JudgedLoss:
        """A loss over the rows of a batch trains where a batch is not divided."""
        parts = document.microbatches * document.workers * self.servers_workers
        if parts > 1 or document.leaves_open("microbatches") or document.leaves_open("replicas"):
            raise TrainingError(_drawn(document, split) if split.drawn else over_batch(document, str(split)))
        rules = replace(rules, counts=BATCH, labels=None)
        if self.data.test.rows <= document.batch:
            return JudgedLoss(rules)
        return JudgedLoss(
            rules,
            f"loss: {document.loss} is over the batch, no mean over rows: the test loss is the mean over batches of "
            f"{document.batch} of the {self.data.test.rows} test rows",
        )

    def _undecided(self, document: TrainingDocument, rules: RowRules, split: LossSplit, samples: Samples) -> JudgedLoss:
        """Rows that show nothing: each row counts the same, unless the labels are targets of the model's scores."""
        if rules.labels is not None or document.microbatches * document.workers * self.servers_workers == 1:
            return JudgedLoss(rules)
        return JudgedLoss(
            replace(rules, counts=ROWS),
            f"loss: {document.loss} is {split.loss:.6g} over the {len(samples)} rows that were tried, with "
            f"{_span(samples)}, which does not show what it is a mean over: micro-batches count by rows; otherwise "
            f"write loss: {{function: {document.loss}, counts: targets}}, or sum",
        )


@contextmanager
def loss_named(rules: RowRules, document: TrainingDocument) -> Iterator[None]:
    """Context of tracing a model: its errors say how a loss that the model computes is taken out of it."""
    try:
        yield
    except TrainingError as error:
        if document.loss.function != MODEL:
            raise
        why = ""
        if rules.counts == BATCH:
            why = (
                f"The loss that {document.model_name} computes is over the batch, no mean over its rows: where Python "
                "reads the number of rows (`len`), a graph has it as a constant. "
            )
        raise TrainingError(
            f"{error}\n{why}A loss outside of the model is in no graph: let the model return its scores, give the "
            "labels as targets beside its inputs, and write loss: cross_entropy, or loss: FILE.py:FUNCTION"
        ) from error


def over_batch(document: TrainingDocument, shown: str) -> str:
    """The refusal of a loss over the rows of a batch in micro-batches. `shown`: by what that is known."""
    how = "write" if document.loss.function != MODEL else "take the loss out of the model, or write"
    return (
        f"loss: {document.loss} is over the batch, no mean over its rows ({shown}), so micro-batches and replicas "
        f"train another loss: {how} microbatches: 1, replicas: 1; or say what it is a mean over, loss: {{function: "
        f"{document.loss}, counts: FILE.py:FUNCTION}} with what counts in each row; or accept the mean of the "
        "micro-batches' losses, counts: rows"
    )


def _drawn(document: TrainingDocument, split: LossSplit) -> str:
    """The refusal of a loss of random numbers, which are others in each part of the rows."""
    return (
        f"loss: {document.loss} draws random numbers, other ones for other rows ({split}), so what it is a mean over "
        f"cannot be seen: say it, loss: {{function: {document.loss}, counts: rows}}, or targets, sum, or "
        "FILE.py:FUNCTION; or write microbatches: 1, replicas: 1"
    )


def _declared(loss: LossSpec, rules: RowRules, split: LossSplit, samples: Samples) -> JudgedLoss:
    """What the document says, with a warning if the rows that were tried say otherwise."""
    counts = loss.counts if loss.counts in (ROWS, TARGETS, SUM) else FUNCTION
    ways = [name for name in _LABELS if name in split.counts] if samples.targets is None else []
    if counts == TARGETS and samples.targets is None:
        if class_labels(samples.inputs) is None:
            raise TrainingError(
                "loss.counts: targets: the inputs have no `labels` of classes: write rows, or a function"
            )
        rules = rules if rules.labels is not None else replace(rules, labels=_LABELS[(ways or [*_LABELS])[0]])
    elif counts == TARGETS and samples.classes is None:
        raise TrainingError(
            "loss.counts: targets: the targets are no classes: write rows, or a function of the targets"
        )
    rules = replace(rules, counts=counts or ROWS)
    if counts in split.counts or ways or split.undecided or split.drawn:
        return JudgedLoss(rules)
    return JudgedLoss(
        rules,
        f"loss: {loss} is another loss in micro-batches, which count as declared (counts: {loss.counts}): {split}",
    )


def _unmatched(document: TrainingDocument, samples: Samples) -> str:
    """Warning that the labels of a model that computes its loss are no targets for metrics; empty without labels."""
    if document.loss.function != MODEL or class_labels(samples.inputs) is None:
        return ""
    return (
        "loss: model: the model's loss is not the mean cross-entropy over its argument `labels`, as they are or "
        f"shifted by one, so metrics get no targets (tried on {len(samples)} rows with {_span(samples)})"
    )


def _span(samples: Samples) -> str:
    """How many valid targets the rows have."""
    counts = valid_targets(samples)
    return f"{float(counts.min()):g} to {float(counts.max()):g} valid targets"
