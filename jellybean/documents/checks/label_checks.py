"""Check that labels are what the metric compares answers with: their type, shape and class indices.

Labels of another shape do not fail a comparison, they only make it wrong: `top1` would take the first value of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jellybean.documents.checks.checked import CheckedWorkflow
from jellybean.documents.checks.files import array_header, inside
from jellybean.documents.checks.model_fit import ArrayHeader, Models
from jellybean.documents.checks.tensors import ModelSignature, Port, Sizes, shape_text
from jellybean.documents.flow import Flow
from jellybean.documents.schema.flow_style import flow_style
from jellybean.errors import InputError
from jellybean.quantities import InvalidValueError
from jellybean.tensor_files import read_archived
from jellybean_agent import unserved_reason
from jellybean_solver import EdgeKind

_MAX_BYTES = 2**28  # of labels that are looked at; a small archive may hold GiBs
_TEXT_METRICS = ("word_accuracy", "character_accuracy")
Problem = tuple[str, str]  # message and hint


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a variant of the operator that labels are for answers with. `name`: operator and variant.

    `one_row`: a request has one row of the tensor, as no fan-out is open and nothing is gathered. `model`: that of
    the variant, with its other outputs.
    """

    name: str
    port: Port
    one_row: bool
    model: ModelSignature

    @property
    def text(self) -> str:
        """Type and shape, as messages write them."""
        shape = self.port.tensor.shape
        return f"{self.port.tensor.dtype} {'' if shape is None else shape_text(shape)}".rstrip()

    @property
    def scores(self) -> int | None:
        """Number of values that a request's answer has; None if it is not known."""
        shape = self.port.tensor.shape
        if not shape or not self.one_row or shape[0] not in (None, 1) or None in shape[1:]:
            return None
        return math.prod(size for size in shape[1:] if size is not None)


def check_labels(workflow: CheckedWorkflow, flow: Flow, models: Models, directory: Path) -> None:
    """Report labels that the metric cannot compare with answers. Arrays that cannot be read are reported elsewhere."""
    document = workflow.document
    if document is None or document.labels is None or document.metric is None:
        return
    try:
        header = array_header(directory, document.labels)
    except InvalidValueError:
        return
    if unserved_reason(header.dtype):
        return
    answers = _answers(workflow, flow, models)
    given = f"labels are {header.dtype} {shape_text(header.shape)}"
    if document.metric in _TEXT_METRICS:
        problem = _text_problem(document.metric, header, answers)
    elif document.metric == "top1":
        problem = _form_problem(header) or _index_problem(_values(directory, document.labels), answers)
    else:
        problem = _equality_problem(header, answers) or _value_problem(_values(directory, document.labels), answers)
    if problem is not None:
        workflow.tree.add(("labels",), f"{given}; {problem[0]}", problem[1])


def _answers(workflow: CheckedWorkflow, flow: Flow, models: Models) -> list[_Answer]:
    """The answers of all variants of the operator that labels are for; none if it is not certain which one that is."""
    document = workflow.document
    broken = any(path[0] in ("operators", "labels_of") for path in workflow.broken)
    if document is None or broken or any(name not in flow.edges for name in document.operators):
        return []
    sink = document.labelled_answer
    if sink is None or sink not in document.answers:
        return []
    one_row = not flow.streams[sink].level and all(edge.kind is EdgeKind.EACH for edge in flow.edges[sink])
    return [
        _Answer(f"{sink} {variant}", port, one_row, model)
        for variant, model in models.get(sink, {}).items()
        if (port := model.output(None)) is not None
        and not unserved_reason(port.tensor.dtype)  # which is reported elsewhere
    ]


def _compare_one_value(answer: _Answer) -> str:
    """What to do about an answer of one value where labels are compared with the highest of several scores."""
    others = [port for port in answer.model.outputs if port != answer.port]
    scores = next((port.name for port in others if _has_class_scores(port)), None)
    classes = next((port.name for port in others if _is_class(port)), None)
    send = None if scores is None else f"send the scores: output: {flow_style(scores)} in the variant"
    if _is_class(answer.port):
        return ", or ".join(filter(None, ["write metric: exact_match", send]))
    if classes is not None:
        compare = f"write metric: exact_match and send the class: output: {flow_style(classes)} in the variant"
    else:
        compare = "write metric: exact_match if it is the class"
    return ", or ".join([send or "export the model with a score for each class", compare])


def _has_class_scores(port: Port) -> bool:
    """True if an output is a row with a score for each of several classes."""
    shape = port.tensor.shape or ()
    return port.tensor.dtype.startswith("float") and len(shape) == 2 and shape[1] is not None and shape[1] > 1


def _is_class(port: Port) -> bool:
    """True if an output is one whole number for a request."""
    dtype, shape = port.tensor.dtype, port.tensor.shape or ()
    return dtype.startswith(("int", "uint", "bool")) and all(size == 1 for size in shape[1:])


def _text_problem(metric: str, header: ArrayHeader, answers: Sequence[_Answer]) -> Problem | None:
    if header.dtype != "uint8" or len(header.shape) < 2:
        return (
            f"{metric} needs a text per row: UTF-8 bytes, uint8 [n, length]",
            "save texts as rows of uint8, filled up with zeros, or write metric: exact_match or top1",
        )
    for answer in answers:
        if answer.port.tensor.dtype != "uint8":
            message = f"{metric} compares them with texts (uint8), but {answer.name} answers with {answer.text}"
            return message, "write metric: exact_match or top1, or answer with UTF-8 bytes"
    return None


def _form_problem(header: ArrayHeader) -> Problem | None:
    is_number = np.dtype(header.dtype).kind in "biuf"
    if is_number and math.prod(header.shape[1:]) == 1:
        return None
    return "top1 needs one class index per row", f"save whole numbers from 0, int64 [{header.shape[0]}]"


def _index_problem(labels: npt.NDArray[np.generic] | None, answers: Sequence[_Answer]) -> Problem | None:
    """Why labels are no indices of the classes whose scores are answered."""
    if labels is None or not len(labels):
        return None
    values = np.asarray(labels).reshape(-1).astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0) & (values == np.trunc(values))))
    if wrong.size:
        row = int(wrong[0])
        message = f"top1 needs class indices, whole numbers from 0, but row {row} is {values[row]:g}"
        return message, "save the index of each row's class, as the models number their scores"
    row = int(np.argmax(values))
    for answer in answers:
        count = answer.scores
        if count is None or values[row] < count:
            continue
        if count == 1:
            message = f"top1 needs an answer with a score for each class, but {answer.name} answers with {answer.text}"
            return message, _compare_one_value(answer)
        message = f"row {row} is {values[row]:g}, but {answer.name} answers with {count} scores ({answer.text})"
        return message, f"save class indices from 0 to {count - 1}"
    return None


def _equality_problem(header: ArrayHeader, answers: Sequence[_Answer]) -> Problem | None:
    """Why no row of the labels can be equal to an answer."""
    row = tuple(size for size in header.shape[1:] if size != 1)
    for answer in answers:
        shape = answer.port.tensor.shape
        if shape is None or (shape and _can_be(row, (shape[0] if answer.one_row else None, *shape[1:]))):
            continue
        message = f"exact_match compares a row with an answer, and {answer.name} answers with {answer.text}"
        integers = np.dtype(header.dtype).kind in "iu" and not row
        hint = "for the index of the highest score write metric: top1" if integers else "save labels of its shape"
        return message, hint
    return None


def _value_problem(labels: npt.NDArray[Any] | None, answers: Sequence[_Answer]) -> Problem | None:
    """Why a row of the labels equals no value of an answer's type: it would count as wrong, whatever is answered."""
    if labels is None or not len(labels):
        return None
    for answer in answers:
        dtype = answer.port.tensor.dtype
        with np.errstate(all="ignore"):
            differ = labels.astype(dtype) != labels
        if differ.any():
            row, *place = (int(index) for index in np.argwhere(differ)[0])
            value = labels[(row, *place)]
            message = f"row {row} has {value}, which no {dtype} that {answer.name} answers with is equal to"
            return message, f"save labels as {dtype}, and leave out rows without a label"
    return None


def _can_be(row: Sizes, answer: Sizes) -> bool:
    """True if an answer can have the sizes of a row, apart from sizes of 1; None is any size, 1 included."""
    if not answer:
        return not row
    size, rest = answer[0], answer[1:]
    if size in (None, 1) and _can_be(row, rest):
        return True
    return bool(row) and size in (None, row[0]) and _can_be(row[1:], rest)


def _values(directory: Path, reference: str) -> npt.NDArray[np.generic] | None:
    """The labels; None if they cannot be read, which loading them reports, or are too large to be looked at here."""
    file, _, name = reference.partition("#")
    try:
        return read_archived(inside(directory, file), name, _MAX_BYTES)
    except (InputError, InvalidValueError):
        return None
