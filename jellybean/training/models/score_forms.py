"""The form in which a classifier gives its scores, and conversion to the form of an operator's other variants.

Clients and downstream operators read the same numbers from every variant, so a model that is trained as one more
variant must not give logits where the others give probabilities. The form is read from the scores of real rows: that
of an exported model does not say it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch.nn import functional

from jellybean_agent import ORT_ERRORS, PortNames

_SUM_TOLERANCE = 1e-2  # of the sum of probabilities, in float16 too; logits of many rows never sum to 1
_DIMENSIONS = (-1, 1)  # where the classes are: last, or first after the batch, as in torch's losses
_FAILED: tuple[type[Exception], ...] = (*ORT_ERRORS, KeyError, ValueError, RuntimeError)
Array = npt.NDArray[Any]


class Form(StrEnum):
    """What the scores of a row are."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    LOG_PROBABILITIES = "log-probabilities"


@dataclass(frozen=True, slots=True)
class ScoreForm:
    """A form, and the dimension over which probabilities sum to 1."""

    form: Form
    dimension: int = -1


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another variant of the operator: its model, and its names of the model's inputs and outputs."""

    variant: str
    path: Path
    names: PortNames


def form_of(scores: Array) -> ScoreForm:
    """The form of scores [rows, ...]."""
    values = np.asarray(scores, np.float64)
    for dimension in _DIMENSIONS:
        if values.ndim < 2 or not values.size or values.shape[dimension] < 2:
            continue
        if values.min() >= 0 and np.allclose(values.sum(axis=dimension), 1.0, atol=_SUM_TOLERANCE):
            return ScoreForm(Form.PROBABILITIES, dimension)
        if values.max() <= 0 and np.allclose(np.exp(values).sum(axis=dimension), 1.0, atol=_SUM_TOLERANCE):
            return ScoreForm(Form.LOG_PROBABILITIES, dimension)
    return ScoreForm(Form.LOGITS)


def converted(scores: torch.Tensor, to: ScoreForm) -> torch.Tensor:
    """Logits in another form."""
    if to.form is Form.PROBABILITIES:
        return functional.softmax(scores, dim=to.dimension)
    return functional.log_softmax(scores, dim=to.dimension) if to.form is Form.LOG_PROBABILITIES else scores


def forms_of(siblings: Sequence[Sibling], rows: Mapping[str, Array]) -> dict[str, ScoreForm]:
    """Variant -> the form of its scores for these rows, which are inputs by name, or the one input of each.

    Variants that do not run on such rows, or give no floating-point scores, are left out.
    """
    found: dict[str, ScoreForm] = {}
    for sibling in siblings:
        try:
            session = onnxruntime.InferenceSession(str(sibling.path), providers=["CPUExecutionProvider"])
            names = [port.name for port in session.get_inputs()]
            feed = dict(zip(names, rows.values(), strict=True)) if len(names) == len(rows) == 1 else rows
            output = sibling.names.output or session.get_outputs()[0].name
            (scores,) = session.run([output], {name: feed[name] for name in names})
        except _FAILED:
            continue
        if isinstance(scores, np.ndarray) and scores.dtype.kind == "f":
            found[sibling.variant] = form_of(scores)
    return found


def mismatch_note(trained: Form, siblings: Mapping[str, ScoreForm]) -> str:
    """A note that names the variants whose scores have another form than the exported model's; empty if none has."""
    others = {variant: given.form for variant, given in siblings.items() if given.form is not trained}
    if not others:
        return ""
    other_forms = ", ".join(f"{variant} gives {form}" for variant, form in others.items())
    return f"the exported model gives {trained}, but {other_forms}: clients get whichever the plan chooses"
