"""A cascade: a cheap variant answers where it is sure, a better one answers the rest."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from jellybean.documents.schema.fields import DocumentModel, Name
from jellybean.quantities import InvalidValueError, quoted

_PATTERN = r"^\s*(?:softmax\(\s*([^()\s]+)\s*\)|([^()\s<]+))\s*<\s*(\S+)\s*$"
_CONDITION = re.compile(_PATTERN)
_HOW = "write for example confidence < 0.8, or softmax(scores) < 0.8, with the name of an output of the first variant"


@dataclass(frozen=True, slots=True)
class Condition:
    """When a request is passed on: the highest value of the first variant's `output` is below `below`.

    `softmax`: of the softmax of the output.
    """

    output: str
    softmax: bool
    below: float


def parse_condition(text: str) -> Condition:
    """The condition that `when` states. InvalidValueError if it states none."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise InvalidValueError(f"{quoted(text)} is not a condition", _HOW)
    of_softmax, plain, number = found.groups()
    try:
        below = float(number)
    except ValueError:
        below = math.nan
    if not math.isfinite(below):
        raise InvalidValueError(f"{quoted(number)} is not a number", _HOW)
    if of_softmax and not 0.0 < below <= 1.0:
        raise InvalidValueError(
            f"the highest of a softmax is between 0 and 1, and is compared with {below:g}", "write for example 0.8"
        )
    return Condition(of_softmax or plain, bool(of_softmax), below)


def _condition(text: str) -> str:
    parse_condition(text)
    return text


ConditionText = Annotated[
    str, AfterValidator(_condition), WithJsonSchema({"type": "string", "pattern": _PATTERN, "examples": ["scores < 1"]})
]


class FlowSpec(DocumentModel):
    """A tensor that flows between parts of a cascade."""

    dtype: str = Field(description="Its element type: float32.")
    shape: list[int] = Field(default=[], description="Its sizes without the rows; -1 where they may differ.")


class CascadeFlows(DocumentModel):
    """What flows between the parts of a cascade."""

    scores: FlowSpec = Field(description="The output of the first variant that `when` compares.")
    data: FlowSpec = Field(description="What both variants take.")
    answer: FlowSpec = Field(description="What both variants answer with.")


class CascadeSpec(DocumentModel):
    """A variant made of two others: `first` sees every request, `then` those that the first is not sure of."""

    first: Name = Field(description="The variant that every request gets.")
    then: Name = Field(description="The variant that answers instead where the first is not sure.")
    when: ConditionText = Field(
        description="When the first is not sure: confidence < 0.8 (the highest value of that output of the first "
        "variant), or softmax(scores) < 0.8 (the highest of its softmax)."
    )

    flows: CascadeFlows | None = Field(
        default=None,
        description="What flows between its parts, where the files of its models are not: in resources, which "
        "`render --resource` writes. Elsewhere it is read from the models.",
    )

    @property
    def condition(self) -> Condition:
        """`when`, parsed."""
        return parse_condition(self.when)
