"""How entries of the profiles came about: the profiling runs, and for every entry what it was measured with.

Content is identified by the first digits of a SHA-256, and two such digests are equal if one begins with the other.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema, model_validator

from jellybean.documents.schema.fields import DocumentModel, Name, Speed
from jellybean.quantities import InvalidValueError, describe_value

DIGEST_LENGTH = 12  # hexadecimal digits that `profile` writes: no two files of a project share them by chance
BY_HAND = "by hand"

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12,64}$")]


def _run_number(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and 1 <= len(value) <= 6 and int(value) >= 1:
        return int(value)
    raise InvalidValueError(f"{describe_value(value)} is not the number of a run", "number the runs 1, 2, 3, ...")


RunNumber = Annotated[int, BeforeValidator(_run_number), WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}]})]
RunKey = Annotated[int, BeforeValidator(_run_number), WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]*$"})]


class MeasuredContent(DocumentModel):
    """The content that a run measured and read, by digest."""

    models: dict[Name, dict[Name, Digest]] = Field(
        default={}, description="Operator -> variant -> digest of its model, or of its function and arguments."
    )
    edges: dict[Name, Annotated[tuple[str, ...], Field(strict=False)]] = Field(
        default={}, description="Operator -> its input edges: upstream, and fan_out or gather, and the output's name."
    )
    input_names: dict[Name, dict[Name, str]] = Field(
        default={}, description="Operator -> variant -> the model inputs that it names, where they are not the default."
    )
    output_names: dict[Name, dict[Name, str]] = Field(
        default={}, description="Operator -> variant -> the model outputs that it names, where not the default."
    )
    inputs: dict[Name, Digest] = Field(default={}, description="Source -> digest of its held-out inputs.")
    stream_ids: Digest | None = Field(default=None, description="Digest of the streams of the held-out inputs.")
    labels: Digest | None = Field(default=None, description="Digest of the labels.")
    labels_of: Name | None = Field(
        default=None, description="The operator whose answers the labels were for, if several operators answered."
    )
    metric: str | None = Field(default=None, description="How answers were compared to the labels.")


class ProfileRun(DocumentModel):
    """One run of `jellybean profile`: when and on which machine, and what it measured."""

    date: str = ""
    worker: str | None = Field(default=None, description="Worker that measured (`--on`); none: where it was run.")
    cpu: str | None = None
    cores: int | None = None
    system: str | None = None
    onnxruntime: str | None = Field(default=None, description="Version of onnxruntime.")
    jellybean: str | None = Field(default=None, description="Version of JellyBean.")
    threads: int | None = Field(default=None, description="Threads of one model.")
    batches: Annotated[tuple[int, ...], Field(strict=False)] = Field(default=(), description="Batch sizes it tried.")
    noise: str | None = Field(default=None, description="Spread of repeated measurements.")
    measured: MeasuredContent = MeasuredContent()


class Origin(DocumentModel):
    """Where an entry comes from: a profiling run, or a source in words; without either it was written by hand."""

    source: str | None = Field(default=None, description="Not measured by `jellybean profile`: by hand, or its source.")
    model: Digest | None = Field(default=None, description="Digest of the model, or of the function and arguments.")
    speed: Speed | None = Field(default=None, gt=0, description="Emulated speed of the worker type; none on a device.")
    device: str | None = Field(default=None, description="Device it was measured on, in words; none for the CPU.")
    provider: str | None = Field(default=None, description="Execution provider of the device; none for the CPU's.")
    driver: str | None = Field(default=None, description="Driver of the device, with its version.")
    beside: int | None = Field(
        default=None, ge=1, description="Number of other parts of the device that ran the same model meanwhile."
    )
    run: RunNumber | None = Field(default=None, description="Number of the profiling run, in `runs`.")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.source is not None and self.run is not None:
            raise InvalidValueError("source and run exclude each other", "remove run if the figures were edited")
        return self

    @property
    def by_hand(self) -> bool:
        """True if no profiling run measured it, so that `profile` never overwrites it without `--fresh`."""
        return self.run is None


class CutsOrigin(Origin):
    """Origin of a variant's cuts. `allowed`: the number of cuts that the workflow allowed when they were chosen."""

    allowed: int = Field(default=0, ge=0)


class VariantProvenance(DocumentModel):
    """Origins of a variant's entries."""

    latency: dict[Name, Origin] = Field(default={}, description="Worker type -> origin of its latency and memory.")
    outputs: Origin | None = Field(default=None, description="Origin of `message` and `children`.")
    cuts: CutsOrigin | None = Field(default=None, description="Origin of the choice of cuts.")


class DocumentProvenance(DocumentModel):
    """Origins of the entries that belong to no variant."""

    hop: Origin | None = None
    accuracy: Origin | None = None


def short(digest: str) -> str:
    """The digits of a SHA-256 that profiles keep."""
    return digest[:DIGEST_LENGTH]


def same_digest(one: str, other: str) -> bool:
    """True if two digests, possibly shortened, are of the same content."""
    length = min(len(one), len(other))
    return one[:length] == other[:length]
