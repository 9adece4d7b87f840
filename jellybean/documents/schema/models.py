"""The workflow and infrastructure documents, parsed: SI units, short forms written out.

What one document can say of itself is checked here; what needs two of them, or files, in `checks` and `files`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from jellybean.documents.schema.fields import (
    NOT_EMPTY,
    Bandwidth,
    Duration,
    Fraction,
    Name,
    Percent,
    Price,
    PricePerGib,
    PricePerHour,
    Rate,
    Ratio,
    Size,
    Speed,
    Strict,
)
from jellybean.documents.schema.units import UnitError, describe, shown
from jellybean_agent import ModelError, split_function_name
from jellybean_solver import AT_LEAST, Arrivals, Deliver, Sharing

MOST_SITES = 100_000  # of a tier
AUTO_CUTS, MOST_CUTS = 6, 50  # of one model
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_ARRAY = re.compile(r"[^#]+\.npz#[^#]+")


def _array_reference(text: str) -> str:
    if not _ARRAY.fullmatch(text):
        raise UnitError(f"{shown(text)} names no array", "write the file and the array: data/heldout.npz#images")
    return text


ArrayRef = Annotated[
    str,
    AfterValidator(_array_reference),
    WithJsonSchema({"type": "string", "pattern": r"^[^#]+\.npz#[^#]+$", "examples": ["data/heldout.npz#images"]}),
]


Tiers = Annotated[tuple[Name, ...], Field(strict=False), NOT_EMPTY]


class SourceSpec(Strict):
    """Where data is born: one message of each source makes one request."""

    tier: Name = Field(description="The tier it sits in.")
    rate_per_s: Rate = Field(
        alias="rate", gt=0, description="Requests per time, for example 40/s; of one site of its tier."
    )
    message_bytes: Size = Field(alias="message", description="Size of one request's data, for example 794 KiB.")
    arrivals: Annotated[Arrivals, Field(strict=False)] = Field(
        default=Arrivals.POISSON, description="How requests arrive in time; poisson unless given."
    )
    deliver: Annotated[Deliver, Field(strict=False)] = Field(
        default=Deliver.IN_TIME,
        description="What becomes of a request without an answer in time: in_time (it fails) or eventually (it is kept "
        "on disk until it is answered).",
    )
    stays_in: Tiers | None = Field(
        default=None, description="Tiers that its data may be in; anywhere unless given. For example [edge, hub]."
    )
    inputs: ArrayRef | None = Field(default=None, description="Held-out inputs, one per row: data/heldout.npz#images.")


ANY_VARIANT = "*"
MEASURED = "measured"


def _ratios(value: Any) -> Any:
    """A number is that of all variants; what is measured is not known here."""
    if value == MEASURED:
        return {}
    if isinstance(value, dict) and not value:
        raise UnitError("is empty", "write a ratio for each variant of the upstream, one number, or measured")
    return value if isinstance(value, dict) else {ANY_VARIANT: value}


Ratios = Annotated[
    dict[str, Annotated[Ratio, Field(gt=0)]],
    BeforeValidator(
        _ratios, json_schema_input_type=Ratio | Literal["measured"] | Annotated[dict[Name, Ratio], Field(min_length=1)]
    ),
]


class InputSpec(Strict):
    """An edge into an operator; a plain name is short for `{from: name}`."""

    upstream: Name = Field(alias="from", description="The source or operator that the data comes from.")
    ratios: Ratios | None = Field(
        default=None,
        alias="ratio",
        description="Fan-out: the mean number of requests that one upstream output becomes (4, or 0.3 to thin); by the "
        "upstream's variant: {small: 3.1, large: 4.4}; or `measured`: what the profile knows of each variant.",
    )
    gather: bool = Field(default=False, description="Wait for all children of the innermost open fan-out.")
    output: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="The model output that is sent; the first unless given."
    )
    stays_in: Tiers | None = Field(
        default=None, description="Tiers that this edge's data may be in; anywhere unless given."
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.gather and self.ratios is not None:
            raise UnitError(
                "gather and ratio exclude each other", "a gather's ratio follows from the fan-out it closes"
            )
        return self

    @property
    def ratio(self) -> float | None:
        """The one number of all variants; None where it depends on them, or there is no fan-out."""
        return self.ratios.get(ANY_VARIANT) if self.ratios else None

    @property
    def by_variant(self) -> Mapping[str, float]:
        """The ratio of each of the upstream's variants, where the document says them."""
        return self.ratios if self.ratios and self.ratio is None else {}

    @property
    def measured(self) -> bool:
        """Whether the profile has the ratios."""
        return self.ratios is not None and not self.ratios


def _edge(value: Any) -> Any:
    return {"from": value} if isinstance(value, str) else value


InputEdge = Annotated[InputSpec, BeforeValidator(_edge, json_schema_input_type=Name | InputSpec)]


def _cuts(value: Any) -> Any:
    if value == "auto":
        return AUTO_CUTS
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_CUTS:
        hint = f"write auto, or how many to offer (0 to {MOST_CUTS}; 0: the model stays whole)"
        raise UnitError(f"{describe(value)} is no number of cuts", hint)
    return value


OfferedCuts = Annotated[
    int,
    BeforeValidator(_cuts),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0, "maximum": MOST_CUTS}]}),
]


def _function(text: str) -> str:
    try:
        split_function_name(text)
    except ModelError as error:
        raise UnitError(str(error)) from error
    return text


Function = Annotated[str, AfterValidator(_function)]


def _json(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UnitError(
            f"these arguments are no JSON: {error}", "numbers, texts, true, false, null and lists"
        ) from error
    return value


class VariantSpec(Strict):
    """A model, or a Python function, that can play an operator. With neither it can be planned, not served."""

    model: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="ONNX file, relative to the project: models/mlp.onnx."
    )
    python: Function | None = Field(
        default=None,
        description="Instead of a model: a function of a module that is installed where the agent runs, for example "
        "jellybean_agent.steps:normalise.",
    )
    arguments: Annotated[dict[str, Any], AfterValidator(_json)] = Field(
        default={}, alias="with", description="The function's arguments by name: {mean: 0.5, std: 0.25}."
    )
    sha256: str | None = Field(
        default=None,
        description="SHA-256 of the model's file, or of the source of the function's module: 64 hexadecimal digits; "
        "that of a module is looked up where it is installed unless given.",
    )
    cuts: OfferedCuts | None = Field(
        default=None, description="How many ways to cut the model in two are offered; the operator's unless given."
    )

    @field_validator("sha256")
    @classmethod
    def _hash(cls, value: str | None) -> str | None:
        if value is not None and not _SHA256.fullmatch(value):
            raise UnitError(
                f"{shown(value)} is no SHA-256 ({len(value)} characters)", "64 hexadecimal digits: sha256sum"
            )
        return value.lower() if value is not None else None

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.model is not None and self.python is not None:
            raise UnitError(
                "model and python exclude each other", "a variant is one of the two: make two variants of them"
            )
        if self.arguments and self.python is None:
            raise UnitError("with without python", "arguments are of a function: write python: module:function too")
        if self.sha256 is not None and self.model is None and self.python is None:
            raise UnitError("sha256 without a model", "write model: models/name.onnx too")
        return self

    @property
    def is_served(self) -> bool:
        """Whether there is something to run."""
        return self.model is not None or self.python is not None


class OperatorSpec(Strict):
    """A logical node of the workflow."""

    inputs: Annotated[tuple[InputEdge, ...], Field(strict=False), NOT_EMPTY] = Field(
        description="What it reads; two or more are joined by request."
    )
    variants: Annotated[dict[Name, VariantSpec], NOT_EMPTY] = Field(
        description="What can play it: a list of names, or name -> {model, sha256} or {python, with}."
    )
    tiers: Tiers | None = Field(default=None, description="Tiers that it may run in; any unless given.")
    batch: int | None = Field(default=None, ge=1, description="Most requests per run; limits.batch unless given.")
    batch_delay_s: Duration = Field(
        default=0.0,
        ge=0.0,
        alias="batch_delay",
        description="How long a request may wait for others to share its run, for example 5 ms; 0, it waits for none, "
        "unless given.",
    )
    cuts: OfferedCuts = Field(
        default=0,
        description="How many ways to cut each variant's model in two `jellybean profile` measures and plans may use: "
        "the first layers on one worker, the rest on another. auto, or a number; 0, models stay whole, unless given.",
    )

    def cuts_of(self, variant: str) -> int:
        """How many ways to cut a variant's model are offered."""
        own = self.variants[variant].cuts
        return self.cuts if own is None else own

    @field_validator("variants", mode="before", json_schema_input_type=list[Name] | dict[Name, VariantSpec])
    @classmethod
    def _names(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        for name in value:
            if not isinstance(name, str):
                raise UnitError(f"a variant is {describe(name)}, not a name", "quote it when it is one")
        twice = sorted({name for name in value if value.count(name) > 1})
        if twice:
            raise UnitError(f"variant {shown(twice[0])} stands twice", "keep one of them")
        return {name: {} for name in value}

    @field_validator("inputs")
    @classmethod
    def _once(cls, value: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
        names = [edge.upstream for edge in value]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UnitError(
                f"{shown(twice[0])} stands twice among the inputs", "one edge per upstream; keep one of them"
            )
        return value


class SloSpec(Strict):
    """Targets; what is left out is not asked for."""

    accuracy: Percent | None = Field(default=None, le=100, description="At least this accuracy, in percent.")
    latency_p99_s: Duration | None = Field(
        default=None, alias="latency_p99", gt=0, description="99 of 100 requests are answered within this time."
    )
    budget_usd_per_h: PricePerHour | None = Field(default=None, alias="budget", description="At most this cost.")


class WorkflowDocument(Strict):
    """workflow.yaml: what must be served, and how well."""

    kind: Literal["Workflow"]
    name: Name
    description: str = ""
    sources: Annotated[dict[Name, SourceSpec], NOT_EMPTY]
    operators: Annotated[dict[Name, OperatorSpec], NOT_EMPTY]
    labels: ArrayRef | None = Field(default=None, description="Labels of the held-out inputs: data/heldout.npz#labels.")
    metric: Literal["exact_match", "top1"] | None = Field(
        default=None, description="How answers are compared to labels."
    )
    slo: SloSpec = SloSpec()


class WorkerPoolSpec(Strict):
    """Identical workers in one tier, or in each of its sites."""

    tier: Name
    count: int = Field(default=1, ge=0, le=100_000, description="How many there are; 0 takes the pool out.")
    price_usd_per_h: PricePerHour = Field(alias="price", description="Of one worker, for example 0.096 USD/h.")
    memory_bytes: Size | None = Field(default=None, alias="memory", description="Of one worker, for example 4 GiB.")
    sharing: Annotated[Sharing, Field(strict=False)] | None = Field(
        default=None, description="Whether one worker may serve several operators; limits.sharing unless given."
    )
    type: Name | None = Field(default=None, description="Its name in the profiles; the pool's own unless given.")
    speed: Speed = Field(
        default=1.0, gt=0, le=1, description="Share of this machine's speed; below 1 the device is emulated here."
    )


class LinkSpec(Strict):
    """One direction between two tiers."""

    upstream_tier: Name = Field(alias="from")
    downstream_tier: Name = Field(alias="to")
    price_usd_per_gib: PricePerGib = Field(default=0.0, alias="price", description="For example 0.10 USD/GiB; else 0.")
    bandwidth_bytes_per_s: Bandwidth | None = Field(
        default=None, alias="bandwidth", gt=0, description="For example 100 Mbit/s; unlimited unless given."
    )
    latency_s: Duration = Field(default=0.0, alias="latency", description="One way, for example 20 ms.")


class LimitsSpec(Strict):
    """What plans keep to on every worker."""

    utilisation: Fraction = Field(default=0.8, gt=0, le=1, description="Busy share of a worker that plans may use.")
    sharing: Annotated[Sharing, Field(strict=False)] = Field(
        default=Sharing.SHARED, description="Default of all pools."
    )
    batch: int = Field(default=32, ge=1, description="Most requests that a worker may take into one run.")
    load_from: Literal["mean", "p50", "p75", "p90", "p95", "p99"] = Field(
        default="mean", description="The latency figure that capacity counts."
    )
    budget_usd_per_h: PricePerHour | None = Field(
        default=None, alias="budget", description="At most this cost of all workflows, where several share the fleet."
    )


class MigrationSpec(Strict):
    """What changing a running plan costs, and how much a change must save: `plan --from`."""

    start_usd: Price = Field(
        default=0.0, alias="start", description="Of one replica, a model on one worker, for example 0.02 USD; else 0."
    )
    download_usd_per_gib: PricePerGib | None = Field(
        default=None,
        alias="download",
        description="Of bringing a model to a worker of any tier, for example 0.10 USD/GiB; unless given, what the "
        "links between its tier and the top tier cost, where models are kept.",
    )
    at_least: Fraction = Field(
        default=AT_LEAST,
        le=1,
        description="Share of the running plan's cost that a change must save over the horizon; 2 % unless given.",
    )


class InfrastructureDocument(Strict):
    """infrastructure.yaml: what there is to serve on."""

    kind: Literal["Infrastructure"]
    description: str = ""
    tiers: Annotated[tuple[Name, ...], Field(strict=False), NOT_EMPTY] = Field(
        description="Nearest the data first; data flows this way only."
    )
    sites: dict[Name, Annotated[int, Field(ge=1, le=MOST_SITES)]] = Field(
        default={},
        description="Tier -> how many alike sites it has, for example {store: 1000}; 1 unless given. What documents "
        "say of workers, sources and links of such a tier is said of one site; all get the same plan.",
    )
    workers: Annotated[dict[Name, WorkerPoolSpec], NOT_EMPTY]
    links: Annotated[tuple[LinkSpec, ...], Field(strict=False)] = ()
    limits: LimitsSpec = LimitsSpec()
    migration: MigrationSpec = MigrationSpec()

    @field_validator("tiers")
    @classmethod
    def _once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({name for name in value if value.count(name) > 1})
        if twice:
            raise UnitError(f"tier {shown(twice[0])} stands twice", "keep one of them")
        return value
