"""The infrastructure document: tiers, sites, workers, links and limits, in SI units."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema

from jellybean.documents.schema.device import DeviceField
from jellybean.documents.schema.fields import (
    AUTO,
    NOT_EMPTY,
    Bandwidth,
    CarbonPerHour,
    CarbonPerWh,
    DocumentModel,
    Duration,
    EnergyPerGib,
    Fraction,
    Name,
    Power,
    Price,
    PricePerGib,
    PricePerGram,
    PricePerHour,
    PricePerWh,
    Size,
    Speed,
    Utilisation,
)
from jellybean.documents.schema.share import ShareSpec
from jellybean.quantities import InvalidValueError, quoted
from jellybean_agent import CPU, Device
from jellybean_solver import LEAST_SAVED_SHARE, Objective, Sharing, Terms

MAX_SITES = 100_000  # maximum number of sites of a tier
SITE_FILE_SUFFIX = ".csv"
DEFAULT_UTILISATION = 0.8
UTILISATION_IN_TIME = 0.95  # for `auto` with a p99 target: nearer to 1 a queue takes minutes to settle


class WorkerPoolSpec(DocumentModel):
    """A pool of identical workers in one tier, or in each site of the tier."""

    tier: Name
    count: int = Field(default=1, ge=0, le=100_000, description="Number of workers; 0 disables the pool.")
    price_usd_per_h: PricePerHour = Field(
        alias="price",
        description="Price of one worker, for example 0.096 USD/h; with `share` that of the whole device.",
    )
    memory_bytes: Size | None = Field(
        default=None, gt=0, alias="memory", description="Memory of one worker, for example 4 GiB."
    )
    sharing: Annotated[Sharing, Field(strict=False)] | None = Field(
        default=None, description="Whether one worker may serve several operators; limits.sharing by default."
    )
    type: Name | None = Field(default=None, description="Worker type in the profiles; the pool's name by default.")
    speed: Speed | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Speed relative to this machine; below 1, local runs emulate the slower device. Without it the "
        "type is a device of its own, which `profile` measures only there.",
    )

    device: DeviceField = Field(
        default=CPU,
        description="Execution provider of onnxruntime on which its models run: cpu (the default), cuda, cuda:1, "
        "tensorrt, openvino, rocm, or another by its full name; with options: {provider: openvino, options: "
        "{num_of_threads: 2}}.",
    )
    device_memory_bytes: Size | None = Field(
        default=None,
        gt=0,
        alias="device_memory",
        description="Memory of the device of one worker, beside `memory`, which is the host's; for example 16 GiB. "
        "With `share` that of the whole device.",
    )
    terms: Annotated[Terms, Field(strict=False)] = Field(
        default=Terms.ON_DEMAND,
        description="How its workers are paid: on_demand (the default); reserved: the price is paid whether or not a "
        "plan uses them; spot: they may be taken away at short notice, see slo.survive: 1 spot worker.",
    )
    billing_s: Duration | None = Field(
        default=None,
        alias="billing",
        gt=0,
        description="A worker is paid in whole units of this time, for example 1 h; by the second without it. Plans by "
        "time (`calendar`) count it.",
    )
    max_starts: int | None = Field(
        default=None,
        ge=0,
        description="A change of plan starts at most so many workers of the pool in each site (`plan --from`, "
        "`--add`, `calendar`), as a provider's quota may have it; unlimited by default.",
    )
    share: ShareSpec | None = Field(
        default=None,
        description="A worker is a part of the device: {mig: 1g.10gb}, {mps: 25 %} or {slots: 4}. It costs that part "
        "of the price, and has that part of the power.",
    )
    power_w: Power | None = Field(
        default=None,
        alias="power",
        description="Electric power of one worker while a plan uses it, for example 120 W; with `share` that of the "
        "whole device.",
    )
    carbon_g_per_wh: CarbonPerWh | None = Field(
        default=None, alias="carbon", description="Carbon intensity of its power; carbon.intensity by default."
    )

    @model_validator(mode="after")
    def _check_emulation(self) -> Self:
        if self.emulated_speed != 1 and not self.device.is_cpu:
            raise InvalidValueError(
                f"speed {self.speed:g} emulates a slower CPU, but the device is {self.device}",
                "remove speed (profile it on such a machine with --type), or write speed: 1 if this machine is one",
            )
        if self.device_memory_bytes is not None and self.device.is_cpu:
            raise InvalidValueError(
                "device_memory is the memory of a GPU or another device, but the device is the CPU",
                "write memory instead, or the device",
            )
        if self.device.share is not None:
            raise InvalidValueError("share is no option of the device", "write share beside device")
        if self.max_starts is not None and self.terms is Terms.RESERVED:
            raise InvalidValueError(
                "reserved workers run whether or not a plan uses them, so none is started",
                "remove max_starts",
            )
        if self.share is not None and (reason := self.share.refusal(self.device)):
            raise InvalidValueError(reason, "remove share, or write another device")
        return self

    @property
    def worker_device(self) -> Device:
        """The device on which the models of a worker run: `device`, or its part."""
        return self.device if self.share is None else self.device.part(self.share.share)

    @property
    def worker_price_usd_per_h(self) -> float:
        """Price of using a worker: `price`, or its part; 0 if it is reserved, so paid in any case."""
        return 0.0 if self.terms is Terms.RESERVED else self._part_of_price

    @property
    def paid_usd_per_h(self) -> float:
        """Price of a worker that is paid whether or not it is used."""
        return self._part_of_price if self.terms is Terms.RESERVED else 0.0

    @property
    def _part_of_price(self) -> float:
        return self.price_usd_per_h * self._part

    @property
    def worker_power_w(self) -> float | None:
        """Power of a worker: `power`, or its part; None if it is not stated."""
        return None if self.power_w is None else self.power_w * self._part

    @property
    def _part(self) -> float:
        return 1.0 if self.share is None else self.share.share.fraction

    @property
    def worker_device_memory_bytes(self) -> float | None:
        """Memory of a worker's device: `device_memory`, or its part; None if it is not stated."""
        whole = self.device_memory_bytes
        return whole if whole is None or self.share is None else self.share.share.memory_bytes(whole)

    @property
    def emulated_speed(self) -> float:
        """Speed at which it is served on this machine: 1 (as fast as this machine) if none is given."""
        return 1.0 if self.speed is None else self.speed


class LinkSpec(DocumentModel):
    """A link between two tiers, in one direction."""

    upstream_tier: Name = Field(alias="from")
    downstream_tier: Name = Field(alias="to")
    price_usd_per_gib: PricePerGib = Field(
        default=0.0, alias="price", description="Price of transferred data, for example 0.10 USD/GiB; 0 by default."
    )
    bandwidth_bytes_per_s: Bandwidth | None = Field(
        default=None, alias="bandwidth", gt=0, description="For example 100 Mbit/s; unlimited by default."
    )
    latency_s: Duration = Field(default=0.0, alias="latency", description="One way, for example 20 ms.")
    energy_wh_per_gib: EnergyPerGib | None = Field(
        default=None, alias="energy", description="Energy of transferred data, for example 20 Wh/GB; none by default."
    )
    carbon_g_per_wh: CarbonPerWh | None = Field(
        default=None, alias="carbon", description="Carbon intensity of that energy; carbon.intensity by default."
    )


class LimitsSpec(DocumentModel):
    """Limits that every plan respects."""

    utilisation: Utilisation = Field(
        default=DEFAULT_UTILISATION,
        description="Highest planned utilisation of a worker; 0.8 by default. auto: 0.95 where there is a p99 target, "
        "as simulation then decides how busy workers may be, else 0.8.",
    )
    sharing: Annotated[Sharing, Field(strict=False)] = Field(
        default=Sharing.SHARED, description="Default of all pools."
    )
    batch: int = Field(default=32, ge=1, description="Largest batch, in requests.")
    load_from: Literal["mean", "p50", "p75", "p90", "p95", "p99"] = Field(
        default="mean", description="Latency statistic from which capacity is computed."
    )
    budget_usd_per_h: PricePerHour | None = Field(
        default=None, alias="budget", description="Highest total cost of all workflows that share the fleet."
    )

    def highest_utilisation(self, *, in_time: bool) -> float:
        """The highest planned utilisation. `in_time`: there is a p99 target."""
        if self.utilisation != AUTO:
            return self.utilisation
        return UTILISATION_IN_TIME if in_time else DEFAULT_UTILISATION


class MigrationSpec(DocumentModel):
    """Costs of changing a running plan, and how much a change must save (`plan --from`)."""

    start_usd: Price = Field(
        default=0.0,
        alias="start",
        description="Cost of starting one replica (a model on one worker), for example 0.02 USD; 0 by default.",
    )
    download_usd_per_gib: PricePerGib | None = Field(
        default=None,
        alias="download",
        description="Cost of sending a model to a worker, for example 0.10 USD/GiB. By default the price of "
        "the links from "
        "the top tier, where models are stored, to the worker's tier.",
    )
    at_least: Fraction = Field(
        default=LEAST_SAVED_SHARE,
        le=1,
        description="Share of the running plan's cost that a change must save over the horizon; 2 % by default.",
    )


_PRICE = "Part of the price of workers and links, in proportion to what they use."


class EnergySpec(DocumentModel):
    """Energy of the workers that a plan uses, and of its traffic. In code in USD per Wh, and W."""

    usd: PricePerWh | None = Field(default=None, alias="price", description=_PRICE)
    most: Power | None = Field(default=None, gt=0, alias="limit", description="Of a plan, for example 2 kW.")


class CarbonSpec(DocumentModel):
    """Emissions of that energy, in grams of CO2 equivalent. In code in USD per g, and g/h."""

    intensity_g_per_wh: CarbonPerWh | None = Field(
        default=None, alias="intensity", description="Of all workers and links that state no `carbon`: 350 g/kWh."
    )
    usd: PricePerGram | None = Field(default=None, alias="price", description=_PRICE)
    most: CarbonPerHour | None = Field(default=None, gt=0, alias="limit", description="Of a plan, for example 200 g/h.")


def _number_or_file(value: Any, number: ValidatorFunctionWrapHandler) -> Any:
    if not isinstance(value, str):
        return number(value)
    if not value.endswith(SITE_FILE_SUFFIX) or PurePosixPath(value).name != value:
        raise InvalidValueError(
            f"{quoted(value)} is neither a number of sites nor a {SITE_FILE_SUFFIX} file beside this document",
            "write for example store: 1000, or for sites that differ store: stores.csv",
        )
    return value


class _NumberOrFile:
    """Annotation: the number of a tier's identical sites, or the name of the file with its sites that differ.

    A union of the two would report each error twice.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        number = core_schema.int_schema(ge=1, le=MAX_SITES, strict=True)
        written = core_schema.plain_serializer_function_ser_schema(lambda value: value)
        return core_schema.no_info_wrap_validator_function(_number_or_file, number, serialization=written)


_SITES_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MAX_SITES},
        {"type": "string", "pattern": r"^[^/]+\.csv$"},
    ]
}
SitesOfTier = Annotated[int | str, _NumberOrFile(), WithJsonSchema(_SITES_SCHEMA)]


class InfrastructureDocument(DocumentModel):
    """infrastructure.yaml: the fleet of tiers, workers and links."""

    kind: Literal["Infrastructure"]
    description: str = ""
    tiers: Annotated[tuple[Name, ...], Field(strict=False), NOT_EMPTY] = Field(
        description="In the direction of data flow: the tier nearest to the data first."
    )
    written_sites: dict[Name, SitesOfTier] = Field(
        default={},
        alias="sites",
        description="Tier -> number of identical sites, for example {store: 1000}; 1 by default. Workers, sources and "
        "links of such a tier are those of one site; all sites get the same plan.",
    )
    workers: Annotated[dict[Name, WorkerPoolSpec], NOT_EMPTY]
    links: Annotated[tuple[LinkSpec, ...], Field(strict=False)] = ()
    limits: LimitsSpec = LimitsSpec()
    migration: MigrationSpec = MigrationSpec()
    energy: EnergySpec = EnergySpec()
    carbon: CarbonSpec = CarbonSpec()

    @property
    def resources(self) -> Mapping[Objective, EnergySpec | CarbonSpec]:
        """What is used beside money."""
        return {Objective.ENERGY: self.energy, Objective.CARBON: self.carbon}

    def uses(self, energy_wh: float | None, carbon_g_per_wh: float | None) -> Mapping[str, float]:
        """Resource -> what so much energy is of it, as far as it is known."""
        intensity = self.carbon.intensity_g_per_wh if carbon_g_per_wh is None else carbon_g_per_wh
        if energy_wh is None:
            return {}
        return {"energy": energy_wh, **({} if intensity is None else {"carbon": energy_wh * intensity})}

    @property
    def sites(self) -> Mapping[str, int]:
        """Tier -> number of its identical sites."""
        return {tier: sites for tier, sites in self.written_sites.items() if isinstance(sites, int)}

    @property
    def site_files(self) -> Mapping[str, str]:
        """Tier -> file with the sites that differ, beside the document."""
        return {tier: sites for tier, sites in self.written_sites.items() if isinstance(sites, str)}

    @field_validator("tiers")
    @classmethod
    def _check_unique(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        duplicates = sorted({name for name in value if value.count(name) > 1})
        if duplicates:
            raise InvalidValueError(f"tier {quoted(duplicates[0])} is listed twice", "keep one of them")
        return value
