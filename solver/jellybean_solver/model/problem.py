"""The planning problem: what must be served, by which variants, on which fleet.

All quantities are SI (seconds, bytes, per second) except prices, which are USD per hour and USD per GiB as bills are.
Everything is frozen: a problem is a value that solver, simulator and report share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from jellybean_solver.errors import SolverError
from jellybean_solver.model.accuracy import AccuracyModel

GIB = 2**30
WORKFLOW_SEPARATOR = "/"  # between a workflow's name and an operator's or source's, if there are several workflows
LEAST_BATCH_SAVING = 0.02  # share of the time per request that a larger batch must save; less is noise


class EdgeKind(StrEnum):
    """How many requests of the downstream one request of the upstream becomes."""

    EACH = "each"  # one request for one
    FAN_OUT = "fan_out"  # each row of the output's leading dimension becomes one child request; `ratio` is their mean
    GATHER = "gather"  # one request per parent: waits for all children of the innermost open fan-out


class Arrivals(StrEnum):
    """How a source's requests arrive in time."""

    POISSON = "poisson"
    PERIODIC = "periodic"


class Deliver(StrEnum):
    """What happens to a request that misses its deadline: it fails, or it is kept until it can be answered."""

    IN_TIME = "in_time"
    EVENTUALLY = "eventually"


class Sharing(StrEnum):
    """Whether one worker may serve several operators."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True, slots=True)
class Source:
    """Where data originates. `message_bytes`: size of one request's data; the rate is that of one site."""

    name: str
    tier: str
    rate_per_s: float
    message_bytes: float
    arrivals: Arrivals = Arrivals.POISSON
    deliver: Deliver = field(default=Deliver.IN_TIME, metadata={"said": "where it is not the default"})


@dataclass(frozen=True, slots=True)
class Edge:
    """Data flow from a source or operator to an operator.

    `ratio` is the mean number of downstream requests per upstream request: 1 for EACH, the mean number of children for
    FAN_OUT (0.3 thins out, 4 multiplies), and the inverse of that mean for GATHER. If the upstream's variants have
    ratios of their own, it is the least of them in a problem and the chosen variant's in a plan. `tiers`: where its
    data may be, at both ends; None: anywhere.
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

    `load_s` is the time that capacity counts. `quantiles`: (probability, seconds) in ascending order; `mean_s`: the
    mean to which the simulator rescales samples drawn from them.
    """

    load_s: float
    mean_s: float
    quantiles: tuple[tuple[float, float], ...] = ()


Times = Mapping[int, ServiceTime]  # batch size -> time of one batch


def request_s(times: Times, batch: int) -> float:
    """Seconds that one request keeps a worker busy in full batches, as capacity counts it."""
    return times[batch].load_s / batch


def best_batch(times: Times) -> int:
    """The smallest batch size that no other beats by `LEAST_BATCH_SAVING` of its time per request."""
    least = min(request_s(times, size) for size in times)
    return min(size for size in times if request_s(times, size) * (1.0 - LEAST_BATCH_SAVING) <= least)


@dataclass(frozen=True, slots=True)
class PythonRef:
    """A function, `module:name`, with its arguments as JSON; `module_sha256`: of the source of its module."""

    function: str
    arguments: str
    module_sha256: str


@dataclass(frozen=True, slots=True)
class ModelRef:
    """What a variant executes, by content: a model file, or a Python function installed on the workers.

    `path` is relative to the project's folder, empty for a function. `sha256`: of the file; of a function, of its
    source and arguments. `size_bytes` None: unknown.
    """

    path: str
    sha256: str
    size_bytes: float | None = None
    python: PythonRef | None = field(default=None, metadata={"said": "of functions"})


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
    service: Mapping[str, Times]  # by pool, with the sizes that may be used; without size 1 it cannot run there
    message_bytes: Mapping[str, float]  # downstream operator -> bytes of one message on that edge
    memory_bytes: Mapping[str, float] = field(default_factory=dict)  # pool -> bytes while loaded, in its batches
    model: ModelRef | None = None
    children: tuple[float, ...] = ()  # share of outputs with 0, 1, 2, ... rows; empty when it was not measured
    ratios: Mapping[str, float] = field(default_factory=dict)  # downstream -> this variant's own ratio of that fan-out
    stage: Stage | None = None  # of a model that is cut in two (cut_models.py)


@dataclass(frozen=True, slots=True)
class Operator:
    """A logical node of the workflow."""

    name: str
    inputs: tuple[Edge, ...]
    variants: tuple[Variant, ...]
    tiers: tuple[str, ...] | None = None  # where it may run; None: anywhere
    batch_delay_s: float = 0.0  # longest wait for further requests to share a run

    def variant(self, name: str) -> Variant:
        """The variant called `name`; KeyError when there is none."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Pool:
    """`count` identical workers in each site of a tier. `speed` < 1: the local launcher emulates a slower device."""

    name: str
    tier: str
    count: int
    price_usd_per_h: float
    sharing: Sharing = Sharing.SHARED
    memory_bytes: float | None = None
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two tiers, in each site of the lower tier. A bandwidth of None is unlimited."""

    upstream_tier: str
    downstream_tier: str
    price_usd_per_gib: float = 0.0
    bandwidth_bytes_per_s: float | None = None
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets; None: no target."""

    accuracy: float | None = None
    latency_p99_s: float | None = None
    budget_usd_per_h: float | None = None


def qualified_name(workflow: str, name: str) -> str:
    """The name of a source or operator of one of several workflows."""
    return f"{workflow}{WORKFLOW_SEPARATOR}{name}"


@dataclass(frozen=True, slots=True)
class Workflow:
    """One of several workflows on one fleet, with its own targets; the budget covers all of them.

    Its sources and operators are called `name`/..., so that workflows share no name.
    """

    name: str
    slo: Slo = Slo()

    def owns(self, name: str) -> bool:
        """True if a source or operator belongs to this workflow."""
        return name.startswith(qualified_name(self.name, ""))


@dataclass(frozen=True)
class Problem:
    """A workflow, a fleet and targets. `operators` in topological order; `tiers` from the data upward.

    `workflows`: filled if there are several (multi_workflow.py), each with its targets; `slo` then holds what applies
    to all: the budget, and an accuracy margin by which each must exceed its own target.

    `sites`: tier -> number of identical sites, planned identically (sites.py); default 1. Sources, pools and links
    state one site's figures; rates of operators and edges are of all sites together.

    If variants have fan-out ratios of their own, rates depend on the selection (variant_ratios.py). The problem's own
    rates are then the least of all selections, so that figures computed from them bound every selection.
    """

    name: str
    tiers: tuple[str, ...]
    sources: tuple[Source, ...]
    operators: tuple[Operator, ...]
    pools: tuple[Pool, ...]
    links: tuple[Link, ...]
    accuracy: AccuracyModel
    slo: Slo = Slo()
    utilisation: float = 0.8
    hop_s: float = 0.0  # seconds of one message between two processes, without links
    sites: Mapping[str, int] = field(default_factory=dict)
    workflows: tuple[Workflow, ...] = ()

    @property
    def accuracy_target(self) -> float | None:
        """Target for `accuracy`: the SLO's, or of several workflows a margin of at least 0."""
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
        """Operators whose variant determines fan-out ratios, and so downstream rates."""
        return tuple(o.name for o in self.operators if any(v.ratios != o.variants[0].ratios for v in o.variants))

    @cached_property
    def unbatched(self) -> frozenset[str]:
        """Operators that run one request at a time, whatever batch sizes were profiled."""
        return unbatched(self.edges)

    def times(self, operator: str, variant: Variant, pool: str) -> Times:
        """Service times up to the batch size that plans use in a pool; empty if the variant cannot run there."""
        known = variant.service.get(pool, {})
        if 1 not in known:
            return {}
        if len(known) == 1:
            return known
        most = 1 if operator in self.unbatched else best_batch(known)
        return {size: known[size] for size in sorted(known) if size <= most}

    def unit_usd_per_h(self, pool: Pool) -> float:
        """Price of one worker of a pool in every site together."""
        return pool.price_usd_per_h * self.sites.get(pool.tier, 1)

    def in_each(self, tier: str) -> str:
        """Suffix for a figure of one site, such as " in each store"; empty if the tier has one site."""
        return f" in each {tier}" if self.sites.get(tier, 1) > 1 else ""

    def edge_rate_per_s(self, edge: Edge) -> float:
        """Messages per second on an edge: one per child for FAN_OUT and GATHER."""
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
        """True if this edge's data can flow between two tiers and residency allows it."""
        within = edge.tiers is None or (upstream_tier in edge.tiers and downstream_tier in edge.tiers)
        return within and self.can_flow(upstream_tier, downstream_tier)

    def can_flow(self, upstream_tier: str, downstream_tier: str) -> bool:
        """True inside one tier, and up the tiers over a declared link."""
        if upstream_tier == downstream_tier:
            return True
        upward = self.tier_index[upstream_tier] < self.tier_index[downstream_tier]
        return upward and (upstream_tier, downstream_tier) in self.link_by_tiers


def unbatched(edges: Sequence[Edge]) -> frozenset[str]:
    """Operators that take one request per run.

    A gather's rows belong to one request, and rows fanned out from a batch could not be told apart.
    """
    gathering = {edge.downstream for edge in edges if edge.kind is EdgeKind.GATHER}
    return frozenset(gathering | {edge.upstream for edge in edges if edge.kind is EdgeKind.FAN_OUT})


def with_ratios(operators: Sequence[Operator], pick: Callable[..., float]) -> tuple[Operator, ...]:
    """Operators, in topological order, with each edge's ratio picked among those of the variants (min or max).

    A gather has the inverse of the fan-out that it closes.
    """
    known = {operator.name: operator for operator in operators}
    levels: dict[str, tuple[float | None, ...]] = {}  # node -> ratios of its open fan-outs; None: the edges' own

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
