"""Low-rank adapters (LoRA) in training.yaml. Does not import torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from jellybean.documents.schema.fields import DocumentModel
from jellybean.documents.training.data import Count

ALL_LINEAR = "all-linear"  # as a target: every linear layer but the output of a language model
_Pattern = Annotated[str, Field(min_length=1)]


class LoraSpec(DocumentModel):
    """Low-rank adapters beside frozen weights (LoRA). The keys are peft's `r`, `lora_alpha`, and so on."""

    rank: Count = 8
    alpha: Annotated[float, Field(strict=False, gt=0)] = Field(
        default=16.0, description="What the adapters add is multiplied by alpha / rank."
    )
    dropout: Annotated[float, Field(strict=False, ge=0, lt=1)] = 0.0
    targets: Annotated[tuple[_Pattern, ...], Field(min_length=1, strict=False)] | None = Field(
        default=None,
        description="Layers that get adapters: patterns of names (*.q_proj), or all-linear. By default peft's choice "
        "for the type of the model, of transformers.",
    )

    @field_validator("targets", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value
