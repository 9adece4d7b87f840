"""`tensor` of training.yaml: layers that are split over several processes. Does not import torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from jellybean.documents.schema.fields import DocumentModel
from jellybean.quantities import InvalidValueError

Ways = Annotated[int, Field(ge=1, le=65536)]
LayerWay = Literal["columns", "rows", "vocabulary", "replicated"]


class TensorSpec(DocumentModel):
    """Tensor parallelism: `ways` processes share each device's part of the model."""

    ways: Ways = Field(description="Processes over which layers are split; 1 splits none.")
    layers: dict[str, LayerWay] = Field(
        default_factory=dict,
        description="Patterns of layers' names, with * and ?, and how they are split; later ones win, and layers that "
        "match none are chosen: blocks.*.fc1: columns.",
    )
    conv: Literal["data", "replicated"] = Field(
        default="replicated",
        description="Layers that are not split. replicated: every process computes them with the same samples. data: "
        "with samples of its own (CNN hybrid).",
    )
    linear: Literal["tensor"] = Field(default="tensor", description="Linear layers are split; there is no other value.")

    def __bool__(self) -> bool:
        """Whether layers are split."""
        return self.ways > 1

    def __str__(self) -> str:
        """For messages, behind devices and replicas; empty without tensor parallelism."""
        return f" x {self.ways} of `tensor`" if self.ways > 1 else ""

    @property
    def by_rows(self) -> bool:
        """Whether the processes have different rows outside split layers."""
        return self.ways > 1 and self.conv == "data"

    @property
    def row_parts(self) -> int:
        """Number of parts into which these processes divide the rows of a pipeline."""
        return self.ways if self.by_rows else 1

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        wrong = next((way for way in self.layers.values() if way in ("rows", "vocabulary")), None)
        if self.by_rows and wrong is not None:
            raise InvalidValueError(
                f"with `conv: data` layers are split by columns, and not by {wrong}",
                "write columns, or replicated",
                keys=("conv", "layers"),
            )
        return self


def _spec(given: Any) -> Any:
    return {"ways": given} if isinstance(given, int) and not isinstance(given, bool) else given


TensorSetting = Annotated[TensorSpec, BeforeValidator(_spec)]
