"""The targets of a workflow, hard and soft: accuracy, p99 latency, budget, and what may be lost."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from jellybean.documents.schema.fields import AuditShare, DocumentModel, Duration, Percent, PriceOfTime, PricePerHour
from jellybean.quantities import InvalidValueError, decimal_number, describe_value, parse_fraction, quoted
from jellybean_solver import LossKind, Margin


def _expand_accuracy(value: Any) -> Any:
    """Expand the long form `accuracy: {mean: 90, least: 85, penalty: 0.2 USD/h}` into its targets."""
    if not isinstance(value, dict):
        return value
    if not isinstance(value.get("accuracy"), dict):
        return _with_soft_mean(value)
    stated = value["accuracy"]
    unknown = sorted(str(key) for key in stated if key not in ("mean", "least", "penalty"))
    if unknown or not stated or "mean_accuracy" in value:
        raise InvalidValueError(
            f"accuracy takes mean, least and penalty{f', not {quoted(unknown[0])}' if unknown else ''}",
            "write accuracy: 90 (of every request), or accuracy: {mean: 90, least: 85}",
        )
    rest = {key: item for key, item in value.items() if key != "accuracy"}
    targets = {"mean_accuracy": stated.get("mean"), "accuracy": stated.get("least"), "penalty": stated.get("penalty")}
    return _with_soft_mean({**rest, **{key: target for key, target in targets.items() if target is not None}})


def _with_soft_mean(value: dict[str, Any]) -> dict[str, Any]:
    """The targets; InvalidValueError for a penalty without a mean accuracy that it is for."""
    if value.get("penalty") is not None and value.get("mean_accuracy") is None:
        raise InvalidValueError(
            "a penalty is for a mean accuracy below its target, and there is none",
            "write accuracy: {mean: 90, penalty: 0.2 USD/h}",
        )
    return value


_MARGIN = "write margin: {times: 20 %, rates: 1.5x}"


def _expand_margin(value: Any) -> Any:
    """Take `margin: {lose: 1 worker}` as what is survived; the rest of the margin stays."""
    margin = value.get("margin") if isinstance(value, dict) else None
    if not isinstance(margin, dict) or "lose" not in margin:
        return value
    if "survive" in value:
        raise InvalidValueError("what may be lost is stated twice", "keep survive, or margin.lose", keys=("margin",))
    rest = {key: item for key, item in margin.items() if key != "lose"}
    return {**value, "margin": rest, "survive": margin["lose"]}


def _excess(value: object) -> float:
    """What `20 %`, `0.2` or `1.2x` is more than stated: 0.2."""
    if isinstance(value, str) and value.strip().endswith("x"):
        try:
            found = decimal_number(value.strip()[:-1]) - 1.0
        except ValueError as error:
            raise InvalidValueError(f"{describe_value(value)} is no factor", _MARGIN) from error
    elif isinstance(value, int | float) and not isinstance(value, bool) and value > 1:
        raise InvalidValueError(f"{value:g} may be a factor or a share", f"write {value:g}x, or {100 * value:g} %")
    else:
        found = parse_fraction(value)
    if not 0.0 <= found <= MOST_EXCESS:
        raise InvalidValueError(f"{describe_value(value)} is no margin", _MARGIN)
    return found


MOST_EXCESS = 100.0  # a hundred times more than stated
Excess = Annotated[
    float,
    BeforeValidator(_excess),
    PlainSerializer(lambda value: f"{1.0 + value:g}x", when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}),
]


class MarginSpec(DocumentModel):
    """By how much times and rates may be higher than stated while all targets hold."""

    times: Excess = Field(default=0.0, description="Service times of all operators: 20 %, or 1.2x.")
    rates: Excess = Field(default=0.0, description="Rates of all sources: 50 %, or 1.5x.")


_SOFT_LATENCY = "write latency_p99: {target: 300 ms, penalty: 0.02 USD/h per 10 ms}"


def _expand_latency(value: Any) -> Any:
    """Expand the long form `latency_p99: {target: 300 ms, penalty: 0.02 USD/h per 10 ms}` into a soft target."""
    if not isinstance(value, dict) or not isinstance(value.get("latency_p99"), dict):
        return value
    stated = value["latency_p99"]
    unknown = sorted(str(key) for key in stated if key not in ("target", "penalty"))
    if unknown or not stated:
        raise InvalidValueError(
            f"latency_p99 takes target and penalty{f', not {quoted(unknown[0])}' if unknown else ''}",
            f"{_SOFT_LATENCY}, or latency_p99: 300 ms for a hard target",
            keys=("latency_p99",),
        )
    if any(value.get(key) is not None for key in ("soft_latency_p99", "latency_penalty")):
        raise InvalidValueError(
            "the soft p99 latency is stated twice",
            "keep latency_p99: {target: ..., penalty: ...}",
            keys=("latency_p99",),
        )
    rest = {key: item for key, item in value.items() if key != "latency_p99"}
    return {**rest, "soft_latency_p99": stated.get("target"), "latency_penalty": stated.get("penalty")}


_LOSSES = {f"1 {kind}": kind for kind in LossKind}
_ONE_LOSS: dict[str, Any] = {"type": "string", "enum": [*_LOSSES]}


def _losses(value: object) -> tuple[LossKind, ...]:
    """The kinds of loss that `1 worker` or a list of such texts names, each once, in the order of `LossKind`."""
    stated = [*value] if isinstance(value, list | tuple) else [value]
    known = {*_LOSSES, *_LOSSES.values()}
    for one in stated:
        if not isinstance(one, str) or one not in known:
            raise InvalidValueError(
                f"{describe_value(one)} cannot be planned for", f"write {', '.join(_LOSSES)}, or a list of these"
            )
    return tuple(kind for text, kind in _LOSSES.items() if text in stated or kind in stated)


Losses = Annotated[
    tuple[LossKind, ...],
    BeforeValidator(_losses),
    PlainSerializer(lambda value: [f"1 {kind}" for kind in value], when_used="json"),
    WithJsonSchema({"anyOf": [_ONE_LOSS, {"type": "array", "items": _ONE_LOSS, "maxItems": len(_LOSSES)}]}),
]


class SloSpec(DocumentModel):
    """Service level objectives; an omitted one is not required."""

    accuracy: Percent | None = Field(
        default=None,
        description="Lowest accuracy of the variants that any request gets, in percent; or {mean: 90, least: 85}.",
    )
    mean_accuracy: Percent | None = Field(
        default=None,
        description="Lowest mean accuracy of all requests, in percent: plans may then mix variants of an operator. "
        "Also written as accuracy: {mean: 90}.",
    )
    penalty_usd_per_h: PricePerHour | None = Field(
        default=None,
        alias="penalty",
        gt=0,
        description="The mean accuracy is soft: each percent point below it counts so much, which plans weigh against "
        "their cost. Also written as accuracy: {mean: 90, penalty: 0.2 USD/h}.",
    )
    latency_p99_s: Duration | None = Field(
        default=None, alias="latency_p99", gt=0, description="99 % of requests are answered within this time."
    )
    soft_latency_p99_s: Duration | None = Field(
        default=None,
        alias="soft_latency_p99",
        gt=0,
        description="A p99 latency above which the latency penalty counts, which plans weigh against their cost. Also "
        "written as latency_p99: {target: 300 ms, penalty: 0.02 USD/h per 10 ms}.",
    )
    latency_penalty_usd_per_h_per_s: PriceOfTime | None = Field(
        default=None,
        alias="latency_penalty",
        gt=0,
        description="What each time by which the predicted p99 latency exceeds the soft one counts: "
        "0.02 USD/h per 10 ms.",
    )
    budget_usd_per_h: PricePerHour | None = Field(default=None, alias="budget", description="Highest cost.")
    survives: Losses = Field(
        default=(),
        alias="survive",
        description="What may be lost, one at a time, while all targets hold at the planned rates: 1 worker, 1 spot "
        "worker, 1 site, 1 link, or a list of these. Nothing by default.",
    )

    audit: AuditShare | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the requests that also run the most accurate selection, so that the accuracy of what is "
        "served is estimated without labels: 1 %. None by default.",
    )

    stated_margin: MarginSpec = Field(
        default=MarginSpec(),
        alias="margin",
        description="All targets hold even if times and rates are so much higher: {times: 20 %, rates: 1.5x}; lose: 1 "
        "worker is another word for survive.",
    )

    @property
    def margin(self) -> Margin:
        """The margin as the solver knows it."""
        return Margin(self.stated_margin.times, self.stated_margin.rates)

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return _expand_accuracy(_expand_latency(_expand_margin(value)))

    @model_validator(mode="after")
    def _check_soft_latency(self) -> SloSpec:
        target_s, penalty = self.soft_latency_p99_s, self.latency_penalty_usd_per_h_per_s
        if target_s is None and penalty is None:
            return self
        if penalty is None:
            hint = f"{_SOFT_LATENCY}; or latency_p99: 300 ms for a hard target"
            raise InvalidValueError("a soft p99 latency has no penalty", hint, keys=("latency_p99",))
        if target_s is None:
            raise InvalidValueError("the latency penalty has no target", _SOFT_LATENCY, keys=("latency_p99",))
        if self.latency_p99_s is not None:
            raise InvalidValueError("the p99 latency is either hard or soft", _SOFT_LATENCY, keys=("latency_p99",))
        return self
