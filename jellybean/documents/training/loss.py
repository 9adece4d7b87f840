"""`loss` of training.yaml: what is minimised, and what counts in it. Does not import torch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from jellybean.documents.schema.fields import DocumentModel
from jellybean.documents.training.data import FUNCTION
from jellybean.quantities import InvalidValueError, did_you_mean, quoted

LOSSES = ("cross_entropy", "mse", "model")
COUNTS = ("rows", "targets", "sum")


def _loss(text: str) -> str:
    return known_or_function(text, LOSSES, "loss", f"known losses: {', '.join(LOSSES)}, or write FILE.py:FUNCTION")


def _counts(text: str) -> str:
    return known_or_function(text, COUNTS, "way to count", f"write {', '.join(COUNTS)}, or FILE.py:FUNCTION")


def known_or_function(text: str, known: Collection[str], kind: str, advice: str) -> str:
    """A known name, or FILE.py:FUNCTION. InvalidValueError else, with the nearest known name or the advice."""
    if text not in known and not FUNCTION.fullmatch(text):
        raise InvalidValueError(f"unknown {kind} {quoted(text)}", did_you_mean(text, known) or advice)
    return text


class LossSpec(DocumentModel):
    """The loss, and what counts in it: how the losses of micro-batches make the loss of their batch."""

    function: Annotated[str, AfterValidator(_loss)] = Field(
        description="cross_entropy, mse, FILE.py:FUNCTION, or model: the model returns its loss."
    )
    counts: Annotated[str, AfterValidator(_counts)] | None = Field(
        default=None,
        description="What the loss is a mean over: rows, targets that are not -100, or what a function of the targets "
        "counts in each row; sum: it is no mean. Found by splitting some rows unless given.",
    )

    def __str__(self) -> str:
        """For messages."""
        return self.function

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.counts is not None and self.function in ("cross_entropy", "mse"):
            raise InvalidValueError(
                f"what counts in {self.function} is known", "remove `counts`", keys=("function", "counts")
            )
        return self


def _spec(given: Any) -> Any:
    return {"function": given} if isinstance(given, str) else given


LossSetting = Annotated[LossSpec, BeforeValidator(_spec, json_schema_input_type=str | LossSpec)]
