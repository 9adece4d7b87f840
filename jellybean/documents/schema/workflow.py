"""The workflow document: sources, operators, variants and targets, in SI units with short forms expanded.

Validation that needs other documents or files is in `jellybean.documents.checks`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from jellybean.documents.schema.cascade import CascadeSpec
from jellybean.documents.schema.fields import (
    NOT_EMPTY,
    DocumentModel,
    Duration,
    Name,
    PricePerHour,
    Rate,
    Ratio,
    Size,
    Tiers,
)
from jellybean.documents.schema.slo import SloSpec
from jellybean.quantities import InvalidValueError, describe_value, quoted
from jellybean_agent import ModelError, PortNames, split_function_name
from jellybean_protos.plan_format import canonical_json
from jellybean_solver import Arrivals, Deliver, Objective

AUTO_CUTS, MAX_CUTS = 6, 50  # cuts per model: number for `cuts: auto`, and maximum
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_ARRAY = re.compile(r"[^#]+\.npz#[^#]+")


def _array_reference(text: str) -> str:
    if not _ARRAY.fullmatch(text):
        raise InvalidValueError(
            f"{quoted(text)} does not name an array", "write the file and the array: data/heldout.npz#images"
        )
    return text


ArrayRef = Annotated[
    str,
    AfterValidator(_array_reference),
    WithJsonSchema({"type": "string", "pattern": r"^[^#]+\.npz#[^#]+$", "examples": ["data/heldout.npz#images"]}),
]


class SourceSpec(DocumentModel):
    """Where data is produced. A request consists of one message of each source."""

    tier: Name = Field(description="The tier in which it produces data.")
    rate_per_s: Rate = Field(
        alias="rate", gt=0, description="Requests per second of one site of its tier, for example 40/s."
    )
    message_bytes: Size = Field(alias="message", description="Size of one message, for example 794 KiB.")
    arrivals: Annotated[Arrivals, Field(strict=False)] = Field(
        default=Arrivals.POISSON, description="Arrival process; poisson by default."
    )
    deliver: Annotated[Deliver, Field(strict=False)] = Field(
        default=Deliver.IN_TIME,
        description="What happens to a request that is not answered in time: in_time (it fails) or eventually (it is "
        "kept on disk until it is answered).",
    )
    stays_in: Tiers | None = Field(
        default=None, description="Tiers in which its data may be processed; any by default. For example [edge, hub]."
    )
    inputs: ArrayRef | None = Field(default=None, description="Held-out inputs, one per row: data/heldout.npz#images.")
    streams: int | None = Field(
        default=None,
        ge=1,
        description="Number of streams that its rate is made of, if an operator has a `state`.",
    )


ANY_VARIANT = "*"
MEASURED = "measured"


def _expand_ratios(value: Any) -> Any:
    """Expand the short forms of a ratio: one number applies to all variants; `measured` becomes an empty map."""
    if value == MEASURED:
        return {}
    if isinstance(value, dict) and not value:
        raise InvalidValueError(
            "is empty", "write one number, a ratio for each variant of the upstream operator, or measured"
        )
    return value if isinstance(value, dict) else {ANY_VARIANT: value}


Ratios = Annotated[
    dict[str, Annotated[Ratio, Field(gt=0)]],
    BeforeValidator(
        _expand_ratios,
        json_schema_input_type=Ratio | Literal["measured"] | Annotated[dict[Name, Ratio], Field(min_length=1)],
    ),
]


class InputSpec(DocumentModel):
    """An input edge of an operator; a plain name is short for `{from: name}`."""

    upstream: Name = Field(alias="from", description="The source or operator that the data comes from.")
    ratios: Ratios | None = Field(
        default=None,
        alias="ratio",
        description="Fan-out: the mean number of child requests per upstream output (4; or 0.3 to filter); by upstream "
        "variant: {small: 3.1, large: 4.4}; or `measured`: the ratio of each variant in the profiles.",
    )
    gather: bool = Field(default=False, description="Wait for all child requests of the innermost open fan-out.")
    output: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="The model output that is sent; the first by default."
    )
    stays_in: Tiers | None = Field(
        default=None, description="Tiers in which this edge's data may be processed; any by default."
    )

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        if self.gather and self.ratios is not None:
            raise InvalidValueError(
                "gather and ratio exclude each other", "the ratio of a gather is given by the fan-out that it closes"
            )
        return self

    @property
    def ratio(self) -> float | None:
        """The ratio shared by all variants; None if it depends on the variant or there is no fan-out."""
        return self.ratios.get(ANY_VARIANT) if self.ratios else None

    @property
    def by_variant(self) -> Mapping[str, float]:
        """Upstream variant -> ratio, if the document gives one per variant."""
        return self.ratios if self.ratios and self.ratio is None else {}

    @property
    def measured(self) -> bool:
        """True if the ratios are taken from the profiles."""
        return self.ratios is not None and not self.ratios


def _expand_edge(value: Any) -> Any:
    return {"from": value} if isinstance(value, str) else value


InputEdge = Annotated[InputSpec, BeforeValidator(_expand_edge, json_schema_input_type=Name | InputSpec)]


def _expand_cuts(value: Any) -> Any:
    if value == "auto":
        return AUTO_CUTS
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_CUTS:
        hint = f"write auto, or a number from 0 (the model is not cut) to {MAX_CUTS}"
        raise InvalidValueError(f"{describe_value(value)} is not a number of cuts", hint)
    return value


CutCount = Annotated[
    int,
    BeforeValidator(_expand_cuts),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0, "maximum": MAX_CUTS}]}),
]


def _function(text: str) -> str:
    try:
        split_function_name(text)
    except ModelError as error:
        raise InvalidValueError(str(error)) from error
    return text


_FUNCTION_PATTERN = r"^[A-Za-z][A-Za-z0-9_.]*:[A-Za-z][A-Za-z0-9_]*$"
FunctionRef = Annotated[
    str, AfterValidator(_function), WithJsonSchema({"type": "string", "pattern": _FUNCTION_PATTERN})
]


def _json(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"these arguments cannot be written as JSON: {error}",
            "use numbers, text, true, false, null, lists and maps",
        ) from error
    return value


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Sha256OrUpper = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^{_SHA256.pattern}$"})]  # made lower
PortName = Annotated[str, Field(min_length=1)]  # of a model's input or output: exporters write any text


def _constant(value: Any) -> Any:
    if isinstance(value, list):
        return [_constant(item) for item in value]
    if not isinstance(value, int | float) or (isinstance(value, float) and not math.isfinite(value)):
        hint = "write a number, true, false, or lists of them"
        raise InvalidValueError(f"{describe_value(value)} is no number", hint)
    return value


ConstantValue = Annotated[Any, BeforeValidator(_constant)]


class VariantSpec(DocumentModel):
    """An implementation of an operator: a model, a Python function, or a cascade of two other variants.

    With none of them it can be planned, but not served.
    """

    model: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="ONNX file, relative to the project folder: models/mlp.onnx."
    )
    python: FunctionRef | None = Field(
        default=None,
        description="Instead of a model: a function in a module beside workflow.yaml or installed, for example "
        "jellybean_agent.steps:normalise.",
    )
    arguments: Annotated[dict[str, Any], AfterValidator(_json)] = Field(
        default={}, alias="with", description="The function's arguments by name: {mean: 0.5, std: 0.25}."
    )
    sha256: Sha256OrUpper | None = Field(
        default=None,
        description="SHA-256 of the model file, or of the source of the function's module: 64 hexadecimal "
        "digits. For an "
        "installed module it is computed by default.",
    )
    files: dict[str, Sha256] = Field(
        default={},
        description="Each file of a model with data files -> its SHA-256; only needed where the files are not.",
    )
    inputs: dict[Name, PortName] = Field(
        default={},
        description="Upstream -> the model's input that it feeds: {image: pixel_values}; else by name or position.",
    )
    output: PortName | None = Field(
        default=None, description="The model's output that is sent where an edge names none; the first by default."
    )
    outputs: dict[PortName, PortName] = Field(
        default={}, description="An edge's `output` -> the model's output, where they differ: {boxes: dets}."
    )
    rows: PortName | Annotated[dict[PortName, PortName], NOT_EMPTY] | None = Field(
        default=None,
        description="For a model that fans out, so that it can run in batches: its output with the number of rows of "
        "each request; or one for each output that is fanned out: {cars: car_counts, persons: person_counts}.",
    )
    gathered_rows: Annotated[dict[Name, PortName], NOT_EMPTY] | None = Field(
        default=None,
        description="For a model that gathers, so that it can run in batches: upstream that is gathered -> the model's "
        "input that takes the number of its rows of each request: {crops: crop_counts}.",
    )
    constants: dict[PortName, ConstantValue] = Field(
        default={},
        description="Input of the model -> the value that it takes in each run, where no request brings it: "
        "{sampling_rate: 16000}. A number, or lists of numbers.",
    )
    cuts: CutCount | None = Field(
        default=None, description="Number of cuts offered for this model; the operator's `cuts` by default."
    )
    cascade: CascadeSpec | None = Field(
        default=None,
        description="Instead of a model: two variants of the operator in a row, {first: small, then: large, "
        'when: "confidence < 0.8"}.',
    )

    @field_validator("sha256")
    @classmethod
    def _hash(cls, value: str | None) -> str | None:
        if value is not None and not _SHA256.fullmatch(value):
            raise InvalidValueError(
                f"{quoted(value)} is not a SHA-256 ({len(value)} characters)",
                "write 64 hexadecimal digits, as sha256sum prints",
            )
        return value.lower() if value is not None else None

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.model is not None and self.python is not None:
            raise InvalidValueError("model and python exclude each other", "make them two variants")
        if self.cascade is not None and self.model_fields_set != {"cascade"}:
            other = min(self.model_fields_set - {"cascade"})
            raise InvalidValueError(
                f"a cascade is made of two other variants, and has no {other} of its own", "make them two variants"
            )
        if self.arguments and self.python is None:
            raise InvalidValueError(
                "`with` needs python", "`with` has the arguments of a function: write python: module:function too"
            )
        if self.sha256 is not None and self.model is None and self.python is None:
            raise InvalidValueError("sha256 needs a model", "write model: models/name.onnx too")
        if not self.is_served and self.port_names != PortNames():
            raise InvalidValueError("names of inputs and outputs need a model", "write model: models/name.onnx too")
        if self.gathered_rows is not None and self.cuts:
            raise InvalidValueError(
                "a model with gathered_rows stays whole", "write cuts: 0, or leave gathered_rows out"
            )
        if self.constants and self.cuts:
            raise InvalidValueError("a model with constants stays whole", "write cuts: 0, or leave constants out")
        if self.constants and self.python is not None:
            raise InvalidValueError("constants are inputs of a model", "write the function's arguments as `with`")
        return self

    @property
    def port_names(self) -> PortNames:
        """The variant's own names of its model's inputs and outputs."""
        rows, rows_of = (None, self.rows) if isinstance(self.rows, dict) else (self.rows, {})
        counted = rows, rows_of, self.gathered_rows or {}
        constants = {name: canonical_json(value) for name, value in self.constants.items()}
        return PortNames(self.inputs, self.output, self.outputs, *counted, constants)

    @property
    def is_served(self) -> bool:
        """True if it has a model or a function, so that it can be served."""
        return self.model is not None or self.python is not None


class StateSpec(DocumentModel):
    """A state that an operator's models keep from one chunk of a stream to the next."""

    by: Literal["stream"] = Field(description="What has a state of its own: each stream of requests.")
    tensors: Annotated[dict[PortName, PortName], NOT_EMPTY] = Field(
        description="Input of the models -> output that it takes from the chunk before: {state: state_next}; zeros at "
        "first."
    )


class OperatorSpec(DocumentModel):
    """A node of the workflow graph: one processing step, with alternative variants."""

    inputs: Annotated[tuple[InputEdge, ...], Field(strict=False), NOT_EMPTY] = Field(
        description="Upstream sources and operators; two or more inputs are joined by request."
    )
    variants: Annotated[dict[Name, VariantSpec], NOT_EMPTY] = Field(
        description="Its alternative implementations: a list of names, or name -> {model, sha256} or {python, with}."
    )
    tiers: Tiers | None = Field(default=None, description="Tiers in which it may run; any by default.")
    batch: int | None = Field(default=None, ge=1, description="Largest batch, in requests; limits.batch by default.")
    batch_delay_s: Duration = Field(
        default=0.0,
        ge=0.0,
        alias="batch_delay",
        description="Longest time that a request waits for its batch to fill, for example 5 ms; 0 by default.",
    )
    state: StateSpec | None = Field(
        default=None,
        description="The state that its models keep: {by: stream, tensors: {state: state_next}}; none by default.",
    )
    cuts: CutCount = Field(
        default=0,
        description="Number of cuts per model that `jellybean profile` measures and plans may use. A cut model "
        "runs its first "
        "layers on one worker and the rest on another. auto, or a number; 0 (not cut) by default.",
    )

    def cuts_of(self, variant: str) -> int:
        """Number of cuts offered for a variant's model; none where no edge feeds an input that both parts may need."""
        own = self.variants[variant]
        if own.gathered_rows is not None or own.constants:
            return 0
        return self.cuts if own.cuts is None else own.cuts

    @field_validator("variants", mode="before", json_schema_input_type=list[Name] | dict[Name, VariantSpec])
    @classmethod
    def _expand_names(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        for name in value:
            if not isinstance(name, str):
                raise InvalidValueError(f"a variant is {describe_value(name)}, not a name", "quote it if it is a name")
        duplicates = sorted({name for name in value if value.count(name) > 1})
        if duplicates:
            raise InvalidValueError(f"variant {quoted(duplicates[0])} is listed twice", "keep one of them")
        return {name: {} for name in value}

    @field_validator("inputs")
    @classmethod
    def _check_unique(cls, value: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
        names = [edge.upstream for edge in value]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise InvalidValueError(
                f"{quoted(duplicates[0])} is listed twice in the inputs", "keep one edge per upstream"
            )
        return value


class AdmissionSpec(DocumentModel):
    """Whether a plan of several workflows, or of sites that differ, may leave this one out, and whose it is."""

    worth_usd_per_h: PricePerHour | None = Field(
        default=None,
        alias="worth",
        description="A plan leaves the workflow out if serving it costs more, or nothing is left for it. By default it "
        "must be served.",
    )
    priority: int = Field(
        default=0, description="No workflow is left out for others of a lower priority; a higher number comes first."
    )
    owner: str = Field(default="", max_length=100, description="Whose it is; costs are summed by owner.")


class WorkflowDocument(DocumentModel):
    """workflow.yaml: what to serve, and the targets that a plan must meet."""

    kind: Literal["Workflow"]
    name: Name
    description: str = ""
    sources: Annotated[dict[Name, SourceSpec], NOT_EMPTY]
    operators: Annotated[dict[Name, OperatorSpec], NOT_EMPTY]
    labels: ArrayRef | None = Field(default=None, description="Labels of the held-out inputs: data/heldout.npz#labels.")
    labels_of: Name | None = Field(
        default=None, description="The operator whose answers the labels are for, if several operators answer."
    )
    stream_ids: ArrayRef | None = Field(
        default=None,
        description="The stream of each row of the held-out inputs, if an operator has a `state`: "
        "data/heldout.npz#streams.",
    )
    metric: Literal["exact_match", "top1", "word_accuracy", "character_accuracy"] | None = Field(
        default=None, description="How answers are compared to labels."
    )
    slo: SloSpec = SloSpec()
    admission: AdmissionSpec = AdmissionSpec()
    objective: Annotated[Objective, Field(strict=False)] = Field(
        default=Objective.COST,
        description="What plans are the best in, within all targets: cost (the lowest), mean_accuracy (the highest "
        "mean accuracy of all requests, for which variants may be mixed), rate (the highest rates, in proportion to "
        "those stated), latency (the least p99), energy (the least power) or carbon (the least emissions).",
    )

    @property
    def answers(self) -> tuple[str, ...]:
        """Operators that feed no other, in the document's order: their outputs are the answers of a request."""
        read = {edge.upstream for spec in self.operators.values() for edge in spec.inputs}
        return tuple(name for name in self.operators if name not in read)

    @property
    def labelled_answer(self) -> str | None:
        """The answer that labels are for: `labels_of`, or the only answer; None if several are not told apart."""
        if self.labels_of is not None:
            return self.labels_of
        return self.answers[0] if len(self.answers) == 1 else None
