"""Labels that come after the answers, by request id; the ledger keeps what they say of the answers."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jellybean.answer_metrics import Array, MetricError, correctness
from jellybean.errors import InputError
from jellybean.ledger.answers import AnswerName, label_answer
from jellybean.ledger.errors import NoAnswerError
from jellybean.ledger.ledger import Ledger
from jellybean_agent import decode_tensor, describe_error
from jellybean_protos.gateway.v1 import gateway_pb2

if TYPE_CHECKING:
    from jellybean.documents import Project

_TEXTS, _OF_CLASSES = ("word_accuracy", "character_accuracy"), "top1"
ID, LABEL, CLIENT = "id", "label", "client"  # columns of a file of labels


@dataclass(frozen=True, slots=True)
class LaterLabel:
    """The label of a request. `client`: whose request; None: it is clear. `where`: it was read, for messages."""

    id: str
    label: str
    client: str | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class LabelRule:
    """How answers of a workflow are judged: by `metric`, of the output `sink`; None: the answer's only one."""

    metric: str = "exact_match"
    sink: str | None = None


EXACT_MATCH = LabelRule()  # of a workflow that names no metric


@dataclass(frozen=True, slots=True)
class LabelOutcome:
    """What became of a label: a verdict between 0 and 1, or why there is none."""

    verdict: float | None
    problem: str = ""


def read_labels(path: Path) -> tuple[LaterLabel, ...]:
    """The labels of a CSV file with the columns id and label, and perhaps client. InputError for another file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            names = rows.fieldnames or ()
            if not {ID, LABEL} <= set(names) or len(set(names)) < len(names):
                raise InputError(f"{path}: the first line must name the columns {ID} and {LABEL}, and perhaps {CLIENT}")
            return tuple(_label_of(path, number, row) for number, row in enumerate(rows, start=2))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {describe_error(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except csv.Error as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _label_of(path: Path, number: int, row: Mapping[str, str | None]) -> LaterLabel:
    id_, label = row[ID], row[LABEL]
    if None in row:
        raise InputError(f"{path}:{number}: more cells than columns; a comma in a cell needs quotes around the cell")
    if id_ is None or label is None:
        raise InputError(f"{path}:{number}: a line needs an {ID} and a {LABEL}")
    return LaterLabel(id_, label, row.get(CLIENT) or None, f"{path}:{number}: ")


def label_rule(project: Project) -> LabelRule:
    """How answers of a project's workflow are judged: as its held-out requests are."""
    return LabelRule(project.workflow.metric or EXACT_MATCH.metric, project.workflow.labelled_answer)


def label_answers(
    ledger: Ledger, workflow: str, rule: LabelRule, labels: Sequence[LaterLabel]
) -> tuple[LabelOutcome, ...]:
    """Judge the kept answers of these requests, in their order; one that cannot be judged stops no other."""
    return tuple(_outcome(ledger, workflow, rule, one) for one in labels)


def _outcome(ledger: Ledger, workflow: str, rule: LabelRule, label: LaterLabel) -> LabelOutcome:
    if "\0" in label.id:  # such ids are not kept, and not every database takes them in a question
        return LabelOutcome(None, f"no answer to a request {label.id!r} is kept")
    try:
        judge = _judge(rule.metric, rule.sink, label.label)
        name = AnswerName(workflow, label.id, label.client)
        return LabelOutcome(label_answer(ledger, name, judge, time.time()))
    except (NoAnswerError, MetricError, InputError) as error:
        return LabelOutcome(None, str(error))


def _judge(metric: str, sink: str | None, label: str) -> Callable[[bytes], float]:
    wanted = _label_array(metric, label)

    def judge(serialised: bytes) -> float:
        outputs = gateway_pb2.InferResponse.FromString(serialised).outputs
        name = sink if sink is not None else next(iter(outputs))
        if name not in outputs:
            raise InputError(f"the answer has no output of {name}, which the labels are for")
        try:
            answer = decode_tensor(outputs[name])
            # A label is written in decimals: what equals it is the nearest number of the answer's type.
            is_decimal = metric == EXACT_MATCH.metric and answer.dtype.kind == "f"
            return float(correctness(metric, answer, wanted.astype(answer.dtype) if is_decimal else wanted))
        except (ValueError, IndexError, OverflowError) as error:
            raise InputError(f"label {label!r} cannot be compared with the answer: {error}") from error

    return judge


def _label_array(metric: str, label: str) -> Array:
    """The label as an array: text for metrics of texts, else a number or a list of numbers as JSON."""
    if metric in _TEXTS:
        return np.frombuffer(label.encode(), np.uint8)
    try:
        value = json.loads(label)
        found = np.asarray(value)
    except (ValueError, RecursionError) as error:
        raise InputError(f"label {label!r} is no number and no list of numbers, as {metric} needs") from error
    if found.dtype.kind not in "biuf":
        raise InputError(f"label {label!r} is no number and no list of numbers, as {metric} needs")
    if found.tolist() != value or not np.isfinite(found).all():  # NaN equals nothing; numpy rounds what it mixes
        raise InputError(f"label {label!r} has a number that no answer is equal to")
    if metric == _OF_CLASSES and (found.size != 1 or found.reshape(-1)[0] < 0 or found.reshape(-1)[0] % 1):
        raise InputError(f"label {label!r} is no class: {metric} needs one whole number from 0")
    return found
