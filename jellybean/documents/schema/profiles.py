"""The profiles document: measured latency, memory and message sizes of every variant, and the workflow's accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

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

from jellybean import quantities
from jellybean.documents.schema.fields import (
    NOT_EMPTY,
    DocumentModel,
    Duration,
    Name,
    Percent,
    PercentShare,
    Size,
    digits_of,
    is_long,
)
from jellybean.documents.schema.provenance import DocumentProvenance, Origin, ProfileRun, RunKey, VariantProvenance
from jellybean.quantities import InvalidValueError

ANY_DOWNSTREAM = "*"
SHARES_TOLERANCE = 0.01  # largest difference from 1 of the sum of shares
PERCENTILES = {"p50": 0.50, "p75": 0.75, "p90": 0.90, "p95": 0.95, "p99": 0.99}


class BatchProfile(DocumentModel):
    """A variant on one worker type at one batch size: service time of one batch, and memory while loaded."""

    mean_s: Duration | None = Field(
        default=None, alias="mean", description="Mean service time of one batch, for example 8.1 ms."
    )
    p50_s: Duration | None = Field(default=None, alias="p50")
    p75_s: Duration | None = Field(default=None, alias="p75")
    p90_s: Duration | None = Field(default=None, alias="p90")
    p95_s: Duration | None = Field(default=None, alias="p95")
    p99_s: Duration | None = Field(default=None, alias="p99")
    memory_bytes: Size | None = Field(
        default=None, alias="memory", description="Memory while loaded, for example 40 MiB."
    )
    device_memory_bytes: Size | None = Field(
        default=None, alias="device_memory", description="Memory of the device while loaded, for example 300 MiB."
    )
    noise: PercentShare | None = Field(
        default=None, description="Relative spread of repeated measurements, for example 3 %."
    )

    @model_validator(mode="after")
    def _check_percentiles(self) -> Self:
        known = [(name, value) for name in PERCENTILES if (value := self.percentile_s(name)) is not None]
        if not known and self.mean_s is None:
            raise InvalidValueError(
                "no latency is given", "write mean: 8.1 ms, or at least one of p50, p75, p90, p95, p99"
            )
        for (low, below), (high, above) in pairwise(known):
            if below > above:
                figures = f"{low} {_ms(below)} is above {high} {_ms(above)}"
                raise InvalidValueError(f"percentiles must not decrease: {figures}", "swap them or measure again")
        for name, value in [("mean", self.mean_s), *known]:
            if value is not None and value <= 0:
                raise InvalidValueError(f"{name} must be above 0", "write for example 1 us")
        return self

    def percentile_s(self, name: str) -> float | None:
        """The percentile named `p50`, `p75`, ... in seconds; None if it was not measured."""
        value: float | None = getattr(self, f"{name}_s")
        return value

    @property
    def quantiles(self) -> tuple[tuple[float, float], ...]:
        """Measured percentiles as (probability, seconds), ascending."""
        pairs = ((level, self.percentile_s(name)) for name, level in PERCENTILES.items())
        return tuple((level, value) for level, value in pairs if value is not None)


def _expand_mean(value: Any) -> Any:
    return {"mean": value} if isinstance(value, str | int | float) else value


def _ms(seconds: float) -> str:
    return quantities.format_quantity(quantities.DURATION, seconds, 4)


def _batch_size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and 1 <= len(value) <= 6 and int(value) >= 1:
        return int(value)
    raise InvalidValueError(
        f"{quantities.describe_value(value)} is not a batch size", "write latency by batch size: {1: 8.1 ms, 8: 40 ms}"
    )


def _expand_batches(value: Any) -> Any:
    """Expand the short form: measurements without a batch size become {1: measurements}."""
    if isinstance(value, dict):
        numbered = any(isinstance(key, int) or key.isdigit() for key in value)
        return value if numbered else {1: value}
    return {1: value}


BatchSize = Annotated[int, BeforeValidator(_batch_size), WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]*$"})]
MeanOrBatchProfile = Annotated[
    BatchProfile, BeforeValidator(_expand_mean, json_schema_input_type=Duration | BatchProfile)
]
BatchProfiles = Annotated[
    dict[BatchSize, MeanOrBatchProfile],
    NOT_EMPTY,
    BeforeValidator(
        _expand_batches, json_schema_input_type=Duration | BatchProfile | dict[BatchSize, MeanOrBatchProfile]
    ),
]


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class StageProfile(DocumentModel):
    """One of the two stages of a cut variant."""

    model: Annotated[str, Field(min_length=1)] = Field(description="ONNX file, relative to the project folder.")
    sha256: Sha256 = Field(description="SHA-256 of the file.")
    latency: Annotated[dict[Name, BatchProfiles], NOT_EMPTY] = Field(
        description="Worker type -> batch size -> measurement, as of a variant."
    )
    provenance: dict[Name, Origin] = Field(default={}, description="Worker type -> origin of its latency.")


class CutProfile(DocumentModel):
    """A cut of a variant into two stages: position of the cut, size of the intermediate message, cost of each stage."""

    layers: int = Field(ge=1, description="Number of layers of the head.")
    of: int = Field(ge=2, description="Number of layers of the model.")
    crossing_bytes: Size = Field(alias="crossing", description="Size of one message from head to tail.")
    inputs: Annotated[tuple[Name, ...], Field(strict=False), NOT_EMPTY] = Field(
        description="Upstreams that the head reads; the tail reads the operator's other inputs."
    )
    whole: Sha256 = Field(description="SHA-256 of the uncut model.")
    head: StageProfile
    tail: StageProfile

    @model_validator(mode="after")
    def _check_tail(self) -> Self:
        if self.layers >= self.of:
            raise InvalidValueError(f"a head of {self.layers} of {self.of} layers leaves no tail", "measure it again")
        return self


class VariantProfile(DocumentModel):
    """Measurements of one variant."""

    message_bytes: dict[str, Size] = Field(
        default={},
        alias="message",
        description="Size of one output message (per child request of a fan-out): one size, or one per "
        "downstream operator.",
    )
    latency: Annotated[dict[Name, BatchProfiles], NOT_EMPTY] = Field(
        description="Worker type -> batch size -> measurement; a plain duration is the mean at batch size 1."
    )
    children: Annotated[tuple[PercentShare, ...], Field(strict=False)] = Field(
        default=(),
        description="Of an operator that fans out: share of outputs with 0, 1, 2, ... rows, for example "
        "[0, 20 %, 80 %].",
    )
    cuts: Annotated[tuple[CutProfile, ...], Field(strict=False)] | None = Field(
        default=None,
        description="Measured cuts of the model; written by `jellybean profile` if the workflow allows cuts.",
    )
    provenance: VariantProvenance = VariantProvenance()

    @field_validator("children")
    @classmethod
    def _check_sum(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if value and abs(sum(value) - 1.0) > SHARES_TOLERANCE:
            raise InvalidValueError(f"the shares add up to {100 * sum(value):.4g} %", "they must add up to 100 %")
        return value

    @field_validator("message_bytes", mode="before", json_schema_input_type=Size | dict[str, Size])
    @classmethod
    def _expand_size(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {ANY_DOWNSTREAM: value}

    @field_serializer("message_bytes", when_used="json")
    def _message(self, value: dict[str, float], info: SerializationInfo) -> Any:
        texts = {
            name: quantities.format_quantity(quantities.SIZE, size, digits_of(info)) for name, size in value.items()
        }
        return texts[ANY_DOWNSTREAM] if set(texts) == {ANY_DOWNSTREAM} and not is_long(info) else texts

    @property
    def mean_children(self) -> float:
        """Mean number of rows (child requests) of an output; 0 if it was not measured."""
        total = sum(self.children)
        return sum(rows * share for rows, share in enumerate(self.children)) / total if total > 0 else 0.0

    def bytes_to(self, downstream: str) -> float | None:
        """Size in bytes of one message to `downstream`; None if the profile does not give it."""
        return self.message_bytes.get(downstream, self.message_bytes.get(ANY_DOWNSTREAM))


class MeasuredSelection(DocumentModel):
    """Measured end-to-end accuracy of one selection. Operators with one variant may be left out."""

    selection: dict[Name, Name] = Field(description="Operator -> variant.")
    accuracy: Percent
    agreement: Percent | None = Field(
        default=None, description="Percent of the held-out answers that are those of the `reference`."
    )


class AccuracyPoint(DocumentModel):
    """One measured point of an operator: accuracies of its inputs, in input order, and of its output."""

    inputs: Annotated[tuple[Percent, ...], Field(strict=False)] = ()
    output: Percent


def _expand_points(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    return [value if isinstance(value, dict | AccuracyPoint) else {"output": value}]


Points = Annotated[
    tuple[AccuracyPoint, ...],
    Field(strict=False),
    NOT_EMPTY,
    BeforeValidator(_expand_points, json_schema_input_type=Percent | list[AccuracyPoint]),
]


class AccuracyProfile(DocumentModel):
    """The workflow's accuracy model, in one of three forms."""

    end_to_end: Annotated[tuple[MeasuredSelection, ...], Field(strict=False), NOT_EMPTY] | None = Field(
        default=None, description="Measured accuracy per selection."
    )
    per_operator: Annotated[dict[Name, dict[Name, Points]], NOT_EMPTY] | None = Field(
        default=None, description="Operator -> variant -> accuracy as a function of the accuracies of its inputs."
    )
    independent: Annotated[dict[Name, dict[Name, Percent]], NOT_EMPTY] | None = Field(
        default=None, description="Operator -> variant -> percent; the workflow's accuracy is the product."
    )
    reference: Annotated[dict[Name, Name], NOT_EMPTY] | None = Field(
        default=None, description="The selection that agreements are with, one of the most accurate."
    )
    requests: int | None = Field(default=None, ge=1, description="Number of held-out requests that were answered.")

    @model_validator(mode="after")
    def _check_agreements(self) -> Self:
        stated = any(row.agreement is not None for row in self.end_to_end or ())
        if stated and (self.reference is None or self.requests is None):
            raise InvalidValueError(
                "agreements are stated, but not with which selection, or on how many requests",
                "write reference: {operator: variant} and requests: 400 beside end_to_end",
            )
        return self

    @model_validator(mode="after")
    def _check_one_form(self) -> Self:
        given = [name for name in ("end_to_end", "per_operator", "independent") if getattr(self, name) is not None]
        if len(given) != 1:
            forms = " and ".join(given) if given else "none"
            raise InvalidValueError(
                f"accuracy needs exactly one form, but has {forms}", "keep end_to_end, per_operator or independent"
            )
        return self


class HopProfile(DocumentModel):
    """The time of one message between two processes, without the latency of links."""

    time_s: Duration = Field(alias="time", description="Least over rounds of their median, for example 1.2 ms.")
    noise: PercentShare | None = Field(default=None, description="Relative spread of the rounds, for example 4 %.")


class CascadeProfile(DocumentModel):
    """Measurements of a cascade, as of a workflow in which the operator is four: see `jellybean.documents.cascades`."""

    operators: Annotated[dict[Name, dict[Name, VariantProfile]], NOT_EMPTY] = Field(
        description="Its four operators (first, unsure, then, and the operator itself) -> variant -> measurements."
    )
    accuracy: AccuracyProfile | None = Field(default=None, description="Accuracy of the workflow with the cascade.")
    provenance: DocumentProvenance = DocumentProvenance()


def _expand_hop(value: Any) -> Any:
    return {"time": value} if isinstance(value, str | int | float) else value


class ProfilesDocument(DocumentModel):
    """profiles.yaml: written by `jellybean profile`, or by hand."""

    free_paths: ClassVar[tuple[tuple[str, ...], ...]] = (("machine",),)

    kind: Literal["Profiles"] = "Profiles"
    machine: dict[str, Any] = Field(default={}, description="The machine that was measured; free text.")
    runs: dict[RunKey, ProfileRun] = Field(default={}, description="Number -> run of `jellybean profile`.")
    hop: Annotated[HopProfile, BeforeValidator(_expand_hop, json_schema_input_type=Duration | HopProfile)] | None = (
        Field(default=None, description="Time to send one message between two agents, without link latency.")
    )
    operators: Annotated[dict[Name, dict[Name, VariantProfile]], NOT_EMPTY]
    cascades: dict[Name, dict[Name, CascadeProfile]] = Field(
        default={}, description="Operator -> variant that is a cascade -> its measurements."
    )
    accuracy: AccuracyProfile | None = None
    provenance: DocumentProvenance = DocumentProvenance()

    @model_validator(mode="after")
    def _check_runs(self) -> Self:
        unknown = sorted({origin.run for origin in self.origins if origin.run is not None} - set(self.runs))
        if unknown:
            message = f"provenance names run {unknown[0]}, which `runs` does not have"
            raise InvalidValueError(message, "write source: by hand")
        return self

    @property
    def hop_s(self) -> float | None:
        """Seconds of one message between two processes; None if it was not measured."""
        return self.hop.time_s if self.hop is not None else None

    @property
    def origins(self) -> tuple[Origin, ...]:
        """All stated origins."""
        stated: list[Origin | None] = [self.provenance.hop, self.provenance.accuracy]
        stated += [cascade.provenance.accuracy for cascade in self.all_cascades]
        for profile in self.all_variants:
            stated += [*profile.provenance.latency.values(), profile.provenance.outputs, profile.provenance.cuts]
            for cut in profile.cuts or ():
                stated += [*cut.head.provenance.values(), *cut.tail.provenance.values()]
        return tuple(origin for origin in stated if origin is not None)

    @property
    def all_cascades(self) -> tuple[CascadeProfile, ...]:
        """The profiles of all cascades."""
        return tuple(cascade for variants in self.cascades.values() for cascade in variants.values())

    @property
    def all_variants(self) -> tuple[VariantProfile, ...]:
        """The profiles of all variants, those of cascades' operators included."""
        parts = (self.operators, *(cascade.operators for cascade in self.all_cascades))
        return tuple(profile for part in parts for variants in part.values() for profile in variants.values())


def without_provenance(profiles: ProfilesDocument) -> ProfilesDocument:
    """The profiles as if they were written by hand, so that they are never stale."""
    cascades = {
        operator: {
            variant: cascade.model_copy(
                update={"operators": by_hand(cascade.operators), "provenance": DocumentProvenance()}
            )
            for variant, cascade in variants.items()
        }
        for operator, variants in profiles.cascades.items()
    }
    changed = {"provenance": DocumentProvenance(), "operators": by_hand(profiles.operators), "cascades": cascades}
    return profiles.model_copy(update={"runs": {}, **changed})


def by_hand(operators: Mapping[str, Mapping[str, VariantProfile]]) -> dict[str, dict[str, VariantProfile]]:
    """Profiles of operators' variants as if they were written by hand."""
    return {
        operator: {variant: _variant_without_provenance(profile) for variant, profile in variants.items()}
        for operator, variants in operators.items()
    }


def _variant_without_provenance(profile: VariantProfile) -> VariantProfile:
    stripped: dict[str, Any] = {"provenance": VariantProvenance()}
    if profile.cuts is not None:
        none: dict[str, Any] = {"provenance": {}}
        stripped["cuts"] = tuple(
            cut.model_copy(update={"head": cut.head.model_copy(update=none), "tail": cut.tail.model_copy(update=none)})
            for cut in profile.cuts
        )
    return profile.model_copy(update=stripped)


def latency_statistic(measured: BatchProfile, load_from: str) -> float | None:
    """The statistic named by `limits.load_from`, in seconds; None if it was not measured."""
    return measured.mean_s if load_from == "mean" else measured.percentile_s(load_from)


__all__ = [
    "ANY_DOWNSTREAM",
    "PERCENTILES",
    "AccuracyPoint",
    "AccuracyProfile",
    "BatchProfile",
    "CascadeProfile",
    "CutProfile",
    "HopProfile",
    "MeasuredSelection",
    "ProfilesDocument",
    "StageProfile",
    "VariantProfile",
    "latency_statistic",
]
