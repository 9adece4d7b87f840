"""How processes of a run work together, in training.yaml: sums of gradients, checkpoints. Does not import torch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from jellybean.documents.schema.fields import DocumentModel, Size
from jellybean.documents.training_data import Count
from jellybean.quantities import InvalidValueError, did_you_mean, quoted
from jellybean_solver.pipeline import WAYS

TORCH = "torch"
SYNC_WAYS = (TORCH, *(name for name in WAYS if name != "parameter-server"))  # a server is not one of the ranks


def _way(text: str) -> str:
    if text not in SYNC_WAYS:
        hint = did_you_mean(text, SYNC_WAYS) or f"known ways: {', '.join(SYNC_WAYS)}"
        raise InvalidValueError(f"unknown way to sum gradients {quoted(text)}", hint)
    return text


class SyncSpec(DocumentModel):
    """How replicas sum their gradients."""

    way: Annotated[str, AfterValidator(_way)] = Field(
        default=TORCH,
        description="torch: all_reduce of torch.distributed. ring, tree, butterfly, naive: by messages, in buckets.",
    )
    bucket_bytes: Size = Field(
        default=25 * 2**20, alias="bucket", gt=0, description="Bytes of gradients that are summed together."
    )

    @model_validator(mode="after")
    def _check_bucket(self) -> Self:
        if self.way == TORCH and "bucket_bytes" in self.model_fields_set:
            raise InvalidValueError("torch sums a stage's gradients at once", "remove `bucket`, or choose a way")
        return self


class CheckpointSpec(DocumentModel):
    """Checkpoints, from which a run can resume."""

    every: Count = Field(default=1, description="Epochs between checkpoints.")
    keep: Count = Field(default=2, description="Number of newest checkpoints kept.")
    updates: Count | None = Field(
        default=None, description="Updates between checkpoints within an epoch, for schedules with a flush."
    )
