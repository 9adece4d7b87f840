"""Labels that come after the answers, by request id; the ledger keeps what they say of the answers."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jellybean.answer_metrics import Array, MetricError, correctness
from jellybean.documents import Project
from jellybean.errors import InputError
from jellybean.ledger.answers import AnswerName, label_answer
from jellybean.ledger.errors import LedgerError
from jellybean.ledger.ledger import Ledger
from jellybean_agent import decode_tensor
from jellybean_protos.gateway.v1 import gateway_pb2

_TEXTS = ("word_accuracy", "character_accuracy")
ID, LABEL, CLIENT = "id", "label", "client"


@dataclass(frozen=True, slots=True)
class LaterLabel:
    """The label of a request. `client`: whose request; None: it is clear. `where`: it was read, for messages."""

    id: str
    label: str
    client: str | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class LabelledNow:
    """What became of labels: verdicts between 0 and 1, and why the others have none."""

    verdicts: tuple[float, ...]
    problems: tuple[str, ...]


def read_labels(path: Path) -> tuple[LaterLabel, ...]:
    """The labels of a CSV file with the columns id and label, and perhaps client. InputError for another file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if not {ID, LABEL} <= set(rows.fieldnames or ()):
                raise InputError(f"{path}: the first line must name the columns {ID} and {LABEL}, and perhaps {CLIENT}")
            return tuple(_label_of(path, number, row) for number, row in enumerate(rows, start=2))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _label_of(path: Path, number: int, row: Mapping[str, str | None]) -> LaterLabel:
    id_, label = row[ID], row[LABEL]
    if id_ is None or label is None:
        raise InputError(f"{path}:{number}: a line needs an {ID} and a {LABEL}")
    return LaterLabel(id_, label, row.get(CLIENT) or None, f"{path}:{number}: ")


def label_answers(ledger: Ledger, project: Project, labels: Sequence[LaterLabel]) -> LabelledNow:
    """Judge the kept answers of these requests by the workflow's metric; one that cannot be judged stops no other."""
    workflow = project.workflow
    metric = workflow.metric or "exact_match"
    verdicts: list[float] = []
    problems: list[str] = []
    for one in labels:
        try:
            judge = _judge(metric, workflow.labelled_answer, one.label)
            verdicts.append(label_answer(ledger, AnswerName(workflow.name, one.id, one.client), judge, time.time()))
        except (LedgerError, MetricError, InputError) as error:
            problems.append(f"{one.where}{error}")
    return LabelledNow(tuple(verdicts), tuple(problems))


def _judge(metric: str, sink: str | None, label: str) -> Callable[[bytes], float]:
    wanted = _label_array(metric, label)

    def judge(serialised: bytes) -> float:
        outputs = gateway_pb2.InferResponse.FromString(serialised).outputs
        name = sink if sink is not None else next(iter(outputs))
        if name not in outputs:
            raise InputError(f"the answer has no output of {name}, which the labels are for")
        try:
            return float(correctness(metric, decode_tensor(outputs[name]), wanted))
        except (ValueError, IndexError, OverflowError) as error:
            raise InputError(f"label {label!r} cannot be compared with the answer: {error}") from error

    return judge


def _label_array(metric: str, label: str) -> Array:
    """The label as an array: text for metrics of texts, else a number or a list of numbers as JSON."""
    if metric in _TEXTS:
        return np.frombuffer(label.encode(), np.uint8)
    try:
        found = np.asarray(json.loads(label))
    except ValueError as error:
        raise InputError(f"label {label!r} is no number and no list of numbers, as {metric} needs") from error
    if found.dtype.kind not in "biuf":
        raise InputError(f"label {label!r} is no number and no list of numbers, as {metric} needs")
    return found
