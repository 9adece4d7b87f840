"""`workers.W.share` in infrastructure.yaml: a worker that is a part of a device."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from jellybean.documents.schema.fields import DocumentModel, PercentShare
from jellybean.quantities import InvalidValueError, format_number
from jellybean_agent import SHARE_KINDS, Device, Share

_DIGITS = 6  # of a percentage


def _mig(text: str) -> str:
    try:
        return Share("mig", text).size
    except ValueError as error:
        raise InvalidValueError(str(error)) from error


class ShareSpec(DocumentModel):
    """The part of a device that a worker is: exactly one of mig, mps, slots."""

    mig: Annotated[str, AfterValidator(_mig)] | None = Field(
        default=None, description="MIG profile of a GPU of NVIDIA, for example 1g.10gb."
    )
    mps: PercentShare | None = Field(
        default=None, gt=0, le=1, description="Share of a GPU's threads under CUDA MPS, for example 25 %."
    )
    slots: int | None = Field(
        default=None, ge=2, le=64, description="Number of workers that use the device in turn, by time slices."
    )

    @model_validator(mode="after")
    def _check_one_given(self) -> Self:
        given = [kind for kind in SHARE_KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise InvalidValueError(f"{' and '.join(given) or 'neither mig, mps nor slots'} given", "write one of them")
        return self

    @property
    def share(self) -> Share:
        """The share as a device has it."""
        if self.mps is not None:
            return Share("mps", str(format_number(100 * self.mps, _DIGITS)))
        return Share("mig", self.mig) if self.mig is not None else Share("slots", str(self.slots))

    def refusal(self, device: Device) -> str:
        """Why the device has no such parts; empty if it has them."""
        if device.is_cpu:
            return "share is a part of a GPU or another device, but the device is the CPU"
        if self.slots is None and not device.is_nvidia:
            return f"{self.share.kind} divides GPUs of NVIDIA, but the device is {device}"
        return ""
