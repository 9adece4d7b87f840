"""The planning problem: what must be served, by which variants, on which fleet.

All quantities are SI (seconds, bytes, per second) except prices, which are USD per hour and USD per GiB as bills are.
Everything is frozen: a problem is a value that solver, simulator and report share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from jellybean_protos import plan_format
from jellybean_solver.errors import SolverError
from jellybean_solver.model.accuracy import AccuracyModel
from jellybean_solver.model.audit import Audit, audits_of
from jellybean_solver.model.model_ref import ModelRef
from jellybean_solver.model.targets import NO_TARGETS, LossKind, Slo, all_survived

GIB = 2**30
CPU = "cpu"  # device of a worker for which no other is stated
WORKFLOW_SEPARATOR = (
    plan_format.WORKFLOW_SEPARATOR
)  # between a workflow's name and an operator's or source's, if there are several workflows
LEAST_BATCH_SAVING = 0.02  # fraction of the time per request that a larger batch must save; less is measurement noise


class EdgeKind(StrEnum):
    """How many downstream requests one upstream request produces."""

    EACH = "each"  # one request for one
    FAN_OUT = "fan_out"  # each row of the output becomes one child request; `ratio` is their mean number
    GATHER = "gather"  # one request per parent: waits for all children of the innermost open fan-out


class Arrivals(StrEnum):
    """Arrival process of a source's requests."""

    POISSON = "poisson"
    PERIODIC = "periodic"


class Deliver(StrEnum):
    """What happens to a request that misses its deadline: it fails, or it is kept until it can be answered."""

    IN_TIME = "in_time"
    EVENTUALLY = "eventually"


class Objective(StrEnum):
    """What a plan is the best in, among those that meet all targets."""

    COST = "cost"  # the lowest cost
    MEAN_ACCURACY = "mean_accuracy"  # the highest accuracy of all requests together, which may get unlike variants
    RATE = "rate"  # the highest rates; `solve` plans for those that the problem states
    LATENCY = "latency"  # the least p99 latency; likewise
    ENERGY = "energy"  # the least power of workers and traffic; `counted` has the problem that `solve` plans for
    CARBON = "carbon"  # the least emissions; likewise


class Sharing(StrEnum):
    """Whether one worker may serve several operators."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True, slots=True)
class Source:
    """Where data originates. `message_bytes`: data of one request; `rate_per_s`: requests per second in one site."""

    name: str
    tier: str
    rate_per_s: float
    message_bytes: float
    arrivals: Arrivals = Arrivals.POISSON
    deliver: Deliver = field(default=Deliver.IN_TIME, metadata={"said": "where it is not the default"})
    streams: int = field(
        default=0, metadata={"said": "unless 0"}
    )  # that its rate is made of; 0: no operator has a state


@dataclass(frozen=True, slots=True)
class Edge:
    """Data flow from a source or operator to an operator.

    `ratio` is the mean number of downstream requests per upstream request: 1 for EACH, the mean number of children for
    FAN_OUT (0.3: fewer requests; 4: more), and the inverse of that mean for GATHER. If the ratio depends on the
    upstream's variant, a problem states the smallest one and a plan that of the chosen variant. `tiers`: the tiers
    between which this edge's data may flow (residency); None: all tiers.
    """

    upstream: str
    downstream: str
    kind: EdgeKind = EdgeKind.EACH
    ratio: float = 1.0
    output: str | None = None  # name of the model output that is sent; None: the first
    tiers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """Time that one batch keeps a worker busy.

    `load_s`: seconds with which plans compute load and capacity. `quantiles`: measured (probability, seconds) in
    ascending order; `mean_s`: mean to which the simulator rescales samples from the quantiles.
    """

    load_s: float
    mean_s: float
    quantiles: tuple[tuple[float, float], ...] = ()


Times = Mapping[int, ServiceTime]  # batch size -> time of one batch


def request_s(times: Times, batch: int) -> float:
    """Seconds of a worker's time per request in full batches of size `batch`, from `load_s`."""
    return times[batch].load_s / batch


def best_batch(times: Times) -> int:
    """The smallest batch size whose time per request no other size undercuts by more than `LEAST_BATCH_SAVING`."""
    least = min(request_s(times, size) for size in times)
    return min(size for size in times if request_s(times, size) * (1.0 - LEAST_BATCH_SAVING) <= least)


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers `first` to `last` (from 1) of the `layers` layers of `variant`: one part of a model that is cut in two."""

    operator: str
    variant: str
    first: int
    last: int
    layers: int


@dataclass(frozen=True, slots=True)
class Variant:
    """One model that can implement an operator, with its profile on each worker pool."""

    name: str
    service: Mapping[str, Times]  # pool -> times by batch size; without size 1 the variant cannot run in the pool
    message_bytes: Mapping[str, float]  # downstream operator -> bytes of one message on that edge
    memory_bytes: Mapping[str, float] = field(default_factory=dict)  # pool -> bytes of the loaded model with its batch
    model: ModelRef | None = None
    children: tuple[float, ...] = ()  # fraction of outputs with 0, 1, 2, ... rows; empty if not measured
    ratios: Mapping[str, float] = field(default_factory=dict)  # downstream operator -> this variant's fan-out ratio
    stage: Stage | None = None  # set if the variant is one part of a model that is cut in two (forms.py)
    device_memory_bytes: Mapping[str, float] = field(default_factory=dict)  # pool -> bytes of the device's own memory
    counts_rows: bool = False  # the rows of a batch that it fans out or gathers can be told apart by request


@dataclass(frozen=True, slots=True)
class Form:
    """Operators in topological order, each of one variant, that together stand for the one that the last is named as.

    `accuracy`: of the workflow with this form; None if it is that of the last operator's variant. `has_one_output`:
    readers get the only output of the last operator, whatever output they name.
    """

    operators: tuple[Operator, ...]
    accuracy: AccuracyModel | None = None
    has_one_output: bool = False

    @property
    def name(self) -> str:
        """The operator that it stands for."""
        return self.operators[-1].name

    @property
    def variant(self) -> str:
        """The variant of that operator: its cascade, or the model that is cut."""
        return self.operators[-1].variants[0].name

    @property
    def is_cut(self) -> bool:
        """True for a model that is cut in two."""
        return self.operators[-1].variants[0].stage is not None

    def readers(self, upstream: str) -> tuple[str, ...]:
        """The operators of the form that read an operator or source outside it."""
        return tuple(one.name for one in self.operators if any(edge.upstream == upstream for edge in one.inputs))


@dataclass(frozen=True, slots=True)
class Operator:
    """A logical node of the workflow. `forms`: of which a plan may choose one instead of a variant (forms.py)."""

    name: str
    inputs: tuple[Edge, ...]
    variants: tuple[Variant, ...]
    tiers: tuple[str, ...] | None = None  # where it may run; None: anywhere
    batch_delay_s: float = 0.0  # longest time that a request waits for its batch to fill
    state: tuple[tuple[str, str], ...] = ()  # (input, output) of the models that a stream's next chunk takes
    forms: tuple[Form, ...] = field(default=(), metadata={"said": "if there are any"})

    @property
    def parts(self) -> tuple[Operator, ...]:
        """The operator itself, and those of its forms."""
        return (self, *(part for form in self.forms for part in form.operators))

    def with_variants(self, change: Callable[[Variant], Variant | None]) -> Operator:
        """The operator with its variants changed, also those of its forms; None leaves out the variant or the form."""
        variants = tuple(own for variant in self.variants if (own := change(variant)) is not None)
        parts = ((form, tuple(part.with_variants(change) for part in form.operators)) for form in self.forms)
        forms = tuple(replace(form, operators=own) for form, own in parts if all(part.variants for part in own))
        return replace(self, variants=variants, forms=forms)

    def variant(self, name: str) -> Variant:
        """The variant called `name`; KeyError when there is none."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(name)


class Terms(StrEnum):
    """On what terms a pool's workers are paid. RESERVED: in any case; SPOT: they may be taken away at short notice."""

    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Pool:
    """`count` identical workers in each site of a tier. `speed` < 1: the local launcher emulates a slower device.

    `device`, `device_options`: the execution provider on which models run, and its options, as (name, value).
    `memory_bytes`, `device_memory_bytes`: of one worker's host and of its device; None: unlimited. The price is what
    using a worker costs: 0 for reserved ones, for each of which `paid_usd_per_h` is paid whether or not it is used.
    `max_starts`: how many workers a change from a running plan may start in each site (starts.py); None: all.
    `uses`: resource -> what using a worker takes of it per hour, as the price is of money (resources.py).
    """

    name: str
    tier: str
    count: int
    price_usd_per_h: float
    sharing: Sharing = Sharing.SHARED
    memory_bytes: float | None = None
    speed: float = 1.0
    device: str = CPU
    device_options: tuple[tuple[str, str], ...] = ()
    device_memory_bytes: float | None = None
    terms: Terms = Terms.ON_DEMAND
    paid_usd_per_h: float = 0.0
    max_starts: int | None = field(default=None, metadata={"said": "if it is stated"})
    uses: Mapping[str, float] = field(default_factory=dict, hash=False, metadata={"said": "if any are stated"})


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of the connection between two tiers, once per site of the lower tier. Bandwidth None: unlimited.

    `uses`: resource -> what a GiB takes of it.
    """

    upstream_tier: str
    downstream_tier: str
    price_usd_per_gib: float = 0.0
    bandwidth_bytes_per_s: float | None = None
    latency_s: float = 0.0
    uses: Mapping[str, float] = field(default_factory=dict, hash=False, metadata={"said": "if any are stated"})


def qualified_name(workflow: str, name: str) -> str:
    """The name of a source or operator of one of several workflows."""
    return plan_format.qualified_name(workflow, name)


@dataclass(frozen=True, slots=True)
class Workflow:
    """One of several workflows on one fleet, with its own targets; the budget covers all of them.

    Its sources and operators are called `name`/..., so that workflows share no name. `worth_usd_per_h`: a plan may
    leave it out if serving it costs more than that, or nothing is left for it; None: it must be served. `priority`: no
    workflow is left out for others of a lower one.
    """

    name: str
    slo: Slo = NO_TARGETS
    worth_usd_per_h: float | None = field(default=None, metadata={"said": "if it is stated"})
    priority: int = field(default=0, metadata={"said": "unless 0"})
    owner: str = field(default="", metadata={"said": "if it is stated"})
    audit: Audit | None = field(default=None, metadata={"said": "if there is one"})

    def owns(self, name: str) -> bool:
        """True if a source or operator belongs to this workflow."""
        return name.startswith(qualified_name(self.name, ""))


@dataclass(frozen=True)
class Problem:
    """A workflow, a fleet and targets. `operators` in topological order; `tiers` from the edge up to the cloud.

    `workflows`: filled if there are several (multi_workflow.py), each with its targets; `slo` then holds the budget of
    all, and an accuracy margin by which each workflow must exceed its own target.

    `sites`: tier -> number of identical sites, planned identically (sites.py); default 1. Sources, pools and links
    state one site's figures; rates of operators and edges cover all sites together.

    If fan-out ratios depend on the variant, rates depend on the selection (variant_ratios.py). `rate_per_s` is then
    the smallest rate of all selections, so that costs and loads computed from it are lower bounds for every selection.

    `stale_profiles`: sentences about figures that were measured before models, data or speeds changed, and that the
    user accepts; plans repeat them.

    `audit`: a share of the requests also runs a reference, by operators of its own (audited_problem.py); those of
    several workflows are in `workflows`.

    `most`: resource -> the most that a plan may use of it, in all sites. `counts`: whose use stands in the prices.
    """

    name: str
    tiers: tuple[str, ...]
    sources: tuple[Source, ...]
    operators: tuple[Operator, ...]
    pools: tuple[Pool, ...]
    links: tuple[Link, ...]
    accuracy: AccuracyModel
    slo: Slo = NO_TARGETS
    utilisation: float = 0.8
    hop_s: float = 0.0  # seconds of one message between two processes, without links
    sites: Mapping[str, int] = field(default_factory=dict)
    workflows: tuple[Workflow, ...] = ()
    stale_profiles: tuple[str, ...] = field(default=(), metadata={"said": "if there are any"})
    objective: Objective = Objective.COST
    audit: Audit | None = field(default=None, metadata={"said": "if there is one"})
    most: Mapping[str, float] = field(default_factory=dict, metadata={"said": "if any are stated"})
    counts: Objective = field(default=Objective.COST, metadata={"said": "unless it is the cost"})

    @property
    def may_leave_out(self) -> bool:
        """True if a plan may leave workflows out, those that are worth too little."""
        return any(workflow.worth_usd_per_h is not None for workflow in self.workflows)

    @property
    def is_for_ways(self) -> bool:
        """True if its plans are found by the program of ways (mixture/).

        They mix variants, bear losses, or use resources within a limit.
        """
        return self.may_mix or bool(self.survives or self.most)

    @cached_property
    def survives(self) -> tuple[LossKind, ...]:
        """What may be lost, one at a time, while the targets of some workflow hold."""
        return all_survived(self.targets)

    @cached_property
    def may_mix(self) -> bool:
        """True if a plan may give requests unlike selections."""
        means = any(slo.mean_accuracy is not None for slo in self.targets)
        return means or self.objective is Objective.MEAN_ACCURACY

    def usable_bytes_per_s(self, link: Link) -> float | None:
        """What of a link's bandwidth a plan may fill, in each site: less where rates have a margin; None: all."""
        if link.bandwidth_bytes_per_s is None:
            return None
        return link.bandwidth_bytes_per_s / (1.0 + max(slo.margin.rates for slo in self.targets))

    @cached_property
    def audits(self) -> Mapping[str, Audit]:
        """Workflow -> its audit, of those that have one; a single workflow has the name ""."""
        return audits_of(self.audit, {workflow.name: workflow.audit for workflow in self.workflows})

    @cached_property
    def targets(self) -> tuple[Slo, ...]:
        """The targets of each workflow; those of the budget are in `slo`."""
        return tuple(self.slo_by_workflow.values())

    @cached_property
    def slo_by_workflow(self) -> Mapping[str, Slo]:
        """Workflow -> its targets; the only one is called ""."""
        return {workflow.name: workflow.slo for workflow in self.workflows} or {"": self.slo}

    @property
    def accuracy_target(self) -> float | None:
        """Target for `accuracy` in percent; with several workflows the required margin in percent points."""
        if self.slo.accuracy is None and any(workflow.slo.accuracy is not None for workflow in self.workflows):
            return 0.0
        return self.slo.accuracy

    def __post_init__(self) -> None:
        if any(variant.ratios for operator in self.operators for variant in operator.variants):
            object.__setattr__(self, "operators", with_ratios(self.operators, min))

    def workflow_of(self, name: str) -> str:
        """The workflow that a source or operator belongs to; empty if there is only one."""
        return name.partition(WORKFLOW_SEPARATOR)[0] if self.workflows else ""

    @cached_property
    def has_forms(self) -> bool:
        """True if some of its operators may have a form."""
        return any(operator.forms for operator in self.operators)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, by downstream operator in topological order."""
        return tuple(edge for operator in self.operators for edge in operator.inputs)

    @cached_property
    def source_by_name(self) -> Mapping[str, Source]:
        return {source.name: source for source in self.sources}

    @cached_property
    def operator_by_name(self) -> Mapping[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Operator -> its number in topological order."""
        return {operator.name: number for number, operator in enumerate(self.operators)}

    @cached_property
    def pool_by_name(self) -> Mapping[str, Pool]:
        return {pool.name: pool for pool in self.pools}

    @cached_property
    def tier_index(self) -> Mapping[str, int]:
        return {tier: index for index, tier in enumerate(self.tiers)}

    @cached_property
    def link_by_tiers(self) -> Mapping[tuple[str, str], Link]:
        return {(link.upstream_tier, link.downstream_tier): link for link in self.links}

    @cached_property
    def rate_per_s(self) -> Mapping[str, float]:
        """Requests per second of every source and operator in all sites, with ratios applied along the graph."""
        rates = {source.name: source.rate_per_s * self.sites.get(source.tier, 1) for source in self.sources}
        for operator in self.operators:
            edge = operator.inputs[0]
            rates[operator.name] = rates[edge.upstream] * edge.ratio
        return rates

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """Operators with fan-out ratios that depend on their variant, so that downstream rates do too."""
        return tuple(o.name for o in self.operators if any(v.ratios != o.variants[0].ratios for v in o.variants))

    @cached_property
    def unbatched(self) -> frozenset[str]:
        """Operators that run one request at a time, unless the variant counts the rows of each request."""
        return unbatched(self.edges)

    def times(self, operator: str, variant: Variant, pool: str) -> Times:
        """Service times up to the batch size that plans use in a pool; empty if the variant cannot run there."""
        known = variant.service.get(pool, {})
        if 1 not in known:
            return {}
        if len(known) == 1:
            return known
        most = 1 if operator in self.unbatched and not variant.counts_rows else best_batch(known)
        return {size: known[size] for size in sorted(known) if size <= most}

    def unit_usd_per_h(self, pool: Pool) -> float:
        """USD per hour of one worker of a pool in every site of its tier, summed over the sites."""
        return pool.price_usd_per_h * self.sites.get(pool.tier, 1)

    @property
    def paid_usd_per_h(self) -> float:
        """USD per hour for reserved workers in all sites, used or not; no part of a plan's cost."""
        return sum(pool.count * pool.paid_usd_per_h * self.sites.get(pool.tier, 1) for pool in self.pools)

    def in_each(self, tier: str) -> str:
        """Text to append to a figure of one site, such as " in each store"; empty if the tier has one site."""
        return f" in each {tier}" if self.sites.get(tier, 1) > 1 else ""

    def edge_rate_per_s(self, edge: Edge) -> float:
        """Messages per second on an edge, in all sites; FAN_OUT and GATHER send one message per child request."""
        rate = self.rate_per_s[edge.upstream]
        return rate * edge.ratio if edge.kind is EdgeKind.FAN_OUT else rate

    def message_bytes(self, edge: Edge, selection: Mapping[str, str]) -> float:
        """Bytes of one message on an edge under a selection (operator -> variant name)."""
        source = self.source_by_name.get(edge.upstream)
        if source is not None:
            return source.message_bytes
        variant = self.operator_by_name[edge.upstream].variant(selection[edge.upstream])
        return variant.message_bytes[edge.downstream]

    def may_cross(self, edge: Edge, upstream_tier: str, downstream_tier: str) -> bool:
        """True if data can flow between the two tiers and the edge's residency (`tiers`) allows both."""
        within = edge.tiers is None or (upstream_tier in edge.tiers and downstream_tier in edge.tiers)
        return within and self.can_flow(upstream_tier, downstream_tier)

    def can_flow(self, upstream_tier: str, downstream_tier: str) -> bool:
        """True if the tiers are equal, or if the downstream tier is higher and a link to it is declared."""
        if upstream_tier == downstream_tier:
            return True
        upward = self.tier_index[upstream_tier] < self.tier_index[downstream_tier]
        return upward and (upstream_tier, downstream_tier) in self.link_by_tiers


def unbatched(edges: Sequence[Edge]) -> frozenset[str]:
    """Operators that run one request at a time unless their variant tells the rows of requests apart (`counts_rows`).

    These gather, or their output is fanned out.
    """
    gathering = {edge.downstream for edge in edges if edge.kind is EdgeKind.GATHER}
    return frozenset(gathering | {edge.upstream for edge in edges if edge.kind is EdgeKind.FAN_OUT})


def with_ratios(operators: Sequence[Operator], pick: Callable[..., float]) -> tuple[Operator, ...]:
    """The operators with each fan-out's ratio set to `pick` (min or max) of its variants' ratios.

    Takes and returns operators in topological order. A GATHER gets the inverse of the fan-out that it closes.
    """
    known = {operator.name: operator for operator in operators}
    levels: dict[str, tuple[float | None, ...]] = {}  # node -> picked ratios of its open fan-outs; None: unchanged

    def followed(edge: Edge) -> tuple[Edge, tuple[float | None, ...]]:
        level = levels.get(edge.upstream, ())
        if edge.kind is EdgeKind.GATHER:
            closes = level[-1] if level else None
            return (edge if closes is None else replace(edge, ratio=1.0 / closes)), level[:-1]
        upstream = known.get(edge.upstream)
        if edge.kind is EdgeKind.EACH or upstream is None:
            return edge, level if edge.kind is EdgeKind.EACH else (*level, None)
        own = [v.ratios[edge.downstream] for v in upstream.variants if edge.downstream in v.ratios]
        if not own:
            return edge, (*level, None)
        if len(own) < len(upstream.variants):
            raise SolverError(f"only some variants of {upstream.name} have a ratio to {edge.downstream}")
        ratio = pick(own)
        return replace(edge, ratio=ratio), (*level, ratio)

    found: list[Operator] = []
    for operator in operators:
        inputs = [followed(edge) for edge in operator.inputs]
        levels[operator.name] = inputs[0][1]
        found.append(replace(operator, inputs=tuple(edge for edge, _ in inputs)))
    return tuple(found)
