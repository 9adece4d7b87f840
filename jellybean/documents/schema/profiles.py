"""The profiles document, parsed: what was measured of every variant, and the workflow's accuracy."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializationInfo,
    StringConstraints,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from jellybean.documents.schema import units
from jellybean.documents.schema.fields import (
    NOT_EMPTY,
    Duration,
    Name,
    Noise,
    Percent,
    Size,
    Strict,
    digits_of,
    is_long,
)
from jellybean.documents.schema.units import UnitError

ANY_DOWNSTREAM = "*"
WHOLE = 0.01  # shares may miss 100 % by as much
PERCENTILES = {"p50": 0.50, "p75": 0.75, "p90": 0.90, "p95": 0.95, "p99": 0.99}


class Figures(Strict):
    """One variant on one worker type at one batch size: time for one batch, and memory while loaded."""

    mean_s: Duration | None = Field(default=None, alias="mean", description="For example 8.1 ms.")
    p50_s: Duration | None = Field(default=None, alias="p50")
    p75_s: Duration | None = Field(default=None, alias="p75")
    p90_s: Duration | None = Field(default=None, alias="p90")
    p95_s: Duration | None = Field(default=None, alias="p95")
    p99_s: Duration | None = Field(default=None, alias="p99")
    memory_bytes: Size | None = Field(default=None, alias="memory", description="While loaded, for example 40 MiB.")
    noise: Noise | None = Field(default=None, description="Relative spread of repeated measurements, for example 3 %.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        known = [(name, value) for name in PERCENTILES if (value := self.percentile_s(name)) is not None]
        if not known and self.mean_s is None:
            raise UnitError("there is no latency", "write mean: 8.1 ms, or at least one of p50, p75, p90, p95, p99")
        for (low, below), (high, above) in pairwise(known):
            if below > above:
                figures = f"{low} {_ms(below)} is above {high} {_ms(above)}"
                raise UnitError(f"percentiles must not fall: {figures}", "exchange them or measure again")
        for name, value in [("mean", self.mean_s), *known]:
            if value is not None and value <= 0:
                raise UnitError(f"{name} must be above 0", "a service takes some time; write for example 1 us")
        return self

    def percentile_s(self, name: str) -> float | None:
        """The percentile called `p50`, `p75`, ...; None when it was not measured."""
        value: float | None = getattr(self, f"{name}_s")
        return value

    @property
    def quantiles(self) -> tuple[tuple[float, float], ...]:
        """(probability, seconds), ascending."""
        pairs = ((level, self.percentile_s(name)) for name, level in PERCENTILES.items())
        return tuple((level, value) for level, value in pairs if value is not None)


def _mean(value: Any) -> Any:
    return {"mean": value} if isinstance(value, str | int | float) else value


def _ms(seconds: float) -> str:
    return units.format_quantity(units.DURATION, seconds, 4)


def _batch_size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and 1 <= len(value) <= 6 and int(value) >= 1:
        return int(value)
    raise UnitError(f"{units.describe(value)} is no batch size", "write latency by batch size: {1: 8.1 ms, 8: 40 ms}")


def _by_batch(value: Any) -> Any:
    """Figures without a batch level mean batch 1."""
    if isinstance(value, dict):
        numbered = any(isinstance(key, int) or key.isdigit() for key in value)
        return value if numbered else {1: value}
    return {1: value}


BatchSize = Annotated[int, BeforeValidator(_batch_size), WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]*$"})]
MeanOrFigures = Annotated[Figures, BeforeValidator(_mean, json_schema_input_type=Duration | Figures)]
ByBatch = Annotated[
    dict[BatchSize, MeanOrFigures],
    NOT_EMPTY,
    BeforeValidator(_by_batch, json_schema_input_type=Duration | Figures | dict[BatchSize, MeanOrFigures]),
]


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class StageProfile(Strict):
    """One of the two models that a variant was cut into."""

    model: Annotated[str, Field(min_length=1)] = Field(description="ONNX file, relative to the project.")
    sha256: Sha256 = Field(description="The file's SHA-256.")
    latency: Annotated[dict[Name, ByBatch], NOT_EMPTY] = Field(description="As of a variant.")


class CutProfile(Strict):
    """A variant as two stages: where it is cut, what crosses, and what each side takes."""

    layers: int = Field(ge=1, description="How many layers the head has.")
    of: int = Field(ge=2, description="How many layers the model has.")
    crossing_bytes: Size = Field(alias="crossing", description="Size of one message from head to tail.")
    inputs: Annotated[tuple[Name, ...], Field(strict=False), NOT_EMPTY] = Field(
        description="Upstreams that the head reads; the tail reads the operator's others."
    )
    whole: Sha256 = Field(description="SHA-256 of the model that was cut.")
    head: StageProfile
    tail: StageProfile

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if self.layers >= self.of:
            raise UnitError(f"a head of {self.layers} of {self.of} layers leaves no tail", "measure it again")
        return self


class VariantProfile(Strict):
    """What was measured of one variant."""

    message_bytes: dict[str, Size] = Field(
        default={},
        alias="message",
        description="Size of one output message (per child when fanned out): one for all, or by downstream operator.",
    )
    latency: Annotated[dict[Name, ByBatch], NOT_EMPTY] = Field(
        description="Worker type -> batch size -> figures; a plain duration is the mean at batch 1."
    )
    children: Annotated[tuple[Noise, ...], Field(strict=False)] = Field(
        default=(),
        description="Share of outputs with 0, 1, 2, ... rows, of an operator that fans out: [0, 20 %, 80 %].",
    )
    cuts: Annotated[tuple[CutProfile, ...], Field(strict=False)] | None = Field(
        default=None, description="Ways to cut the model in two; written by `jellybean profile` where cuts are allowed."
    )

    @field_validator("children")
    @classmethod
    def _whole(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if value and abs(sum(value) - 1.0) > WHOLE:
            raise UnitError(f"the shares add up to {100 * sum(value):.4g} %", "they must add up to 100 %")
        return value

    @field_validator("message_bytes", mode="before", json_schema_input_type=Size | dict[str, Size])
    @classmethod
    def _for_all(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {ANY_DOWNSTREAM: value}

    @field_serializer("message_bytes", when_used="json")
    def _message(self, value: dict[str, float], info: SerializationInfo) -> Any:
        texts = {name: units.format_quantity(units.SIZE, size, digits_of(info)) for name, size in value.items()}
        return texts[ANY_DOWNSTREAM] if set(texts) == {ANY_DOWNSTREAM} and not is_long(info) else texts

    @property
    def mean_children(self) -> float:
        """Mean rows of an output; 0 where it was not measured."""
        total = sum(self.children)
        return sum(rows * share for rows, share in enumerate(self.children)) / total if total > 0 else 0.0

    def bytes_to(self, downstream: str) -> float | None:
        """Bytes of one message to `downstream`; None when the profile does not say."""
        return self.message_bytes.get(downstream, self.message_bytes.get(ANY_DOWNSTREAM))


class MeasuredSelection(Strict):
    """Accuracy of one selection, end to end. Operators with one variant may be left out."""

    selection: dict[Name, Name] = Field(description="Operator -> variant.")
    accuracy: Percent


class AccuracyPoint(Strict):
    """One measured point of an operator: its inputs' accuracies, in the order of its inputs, and its own."""

    inputs: Annotated[tuple[Percent, ...], Field(strict=False)] = ()
    output: Percent


def _points(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    return [value if isinstance(value, dict | AccuracyPoint) else {"output": value}]


Points = Annotated[
    tuple[AccuracyPoint, ...],
    Field(strict=False),
    NOT_EMPTY,
    BeforeValidator(_points, json_schema_input_type=Percent | list[AccuracyPoint]),
]


class AccuracyProfile(Strict):
    """The workflow's accuracy, in one of three forms."""

    end_to_end: Annotated[tuple[MeasuredSelection, ...], Field(strict=False), NOT_EMPTY] | None = Field(
        default=None, description="Measured per selection."
    )
    per_operator: Annotated[dict[Name, dict[Name, Points]], NOT_EMPTY] | None = Field(
        default=None, description="Operator -> variant -> its accuracy as a function of its inputs' accuracies."
    )
    independent: Annotated[dict[Name, dict[Name, Percent]], NOT_EMPTY] | None = Field(
        default=None, description="Operator -> variant -> percent; the workflow has their product."
    )

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = [name for name in ("end_to_end", "per_operator", "independent") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise UnitError(f"accuracy has one form, found {found}", "keep end_to_end, per_operator or independent")
        return self


class ProfilesDocument(Strict):
    """profiles.yaml: written by `jellybean profile`, or by hand."""

    kind: Literal["Profiles"] = "Profiles"
    machine: dict[str, Any] = Field(default={}, description="What it was measured on; free text.")
    hop_s: Duration | None = Field(
        default=None, alias="hop", description="Time that one message takes between two agents, links aside."
    )
    operators: Annotated[dict[Name, dict[Name, VariantProfile]], NOT_EMPTY]
    accuracy: AccuracyProfile | None = None


def latency_figure(figures: Figures, load_from: str) -> float | None:
    """The figure that `limits.load_from` names."""
    return figures.mean_s if load_from == "mean" else figures.percentile_s(load_from)


__all__ = [
    "ANY_DOWNSTREAM",
    "PERCENTILES",
    "AccuracyPoint",
    "AccuracyProfile",
    "CutProfile",
    "Figures",
    "MeasuredSelection",
    "ProfilesDocument",
    "StageProfile",
    "VariantProfile",
    "latency_figure",
]
