"""The planning problem: what must be served, by which variants, on which fleet.

All quantities are SI (seconds, bytes, per second) except prices, which are USD per hour and USD per GiB as bills are.
Everything is frozen: a problem is a value that solver, simulator and report share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, TypeVar

from jellybean_solver.model.accuracy import AccuracyModel, Margins
from jellybean_solver.model.audit import AUDIT_PREFIX, Audit, PlannedAudit, audit_name
from jellybean_solver.model.targets import NO_TARGETS, LossKind, Margin, Slo, largest_margin
from jellybean_solver.model.workflow import (
    WORKFLOW_SEPARATOR,
    Edge,
    EdgeKind,
    GraphNode,
    Operator,
    Source,
    Times,
    Variant,
    Workflow,
    along_graph,
    best_batch,
    unbatched,
    with_ratios,
)

GIB = 2**30
CPU = "cpu"  # device of a worker for which no other is stated


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


class BetweenTiers:
    """What goes from one tier to another, or stays in one."""

    __slots__ = ()
    upstream_tier: str
    downstream_tier: str

    @property
    def tiers(self) -> tuple[str, str]:
        """Its two ends."""
        return self.upstream_tier, self.downstream_tier


@dataclass(frozen=True, slots=True)
class Link(BetweenTiers):
    """One direction of the connection between two tiers, once per site of the lower tier. Bandwidth None: unlimited.

    `uses`: resource -> what a GiB takes of it.
    """

    upstream_tier: str
    downstream_tier: str
    price_usd_per_gib: float = 0.0
    bandwidth_bytes_per_s: float | None = None
    latency_s: float = 0.0
    uses: Mapping[str, float] = field(default_factory=dict, hash=False, metadata={"said": "if any are stated"})


AnyOperator = TypeVar("AnyOperator", bound=GraphNode)
AnyAudit = TypeVar("AnyAudit", Audit, PlannedAudit)


class Workload(Generic[AnyOperator, AnyAudit]):
    """What a problem and its plans have in common: workflows with their targets, on tiers with links between them.

    The only workflow is called "".
    """

    sources: tuple[Source, ...]
    operators: tuple[AnyOperator, ...]
    links: tuple[Link, ...]
    slo: Slo
    sites: Mapping[str, int]
    workflows: tuple[Any, ...]
    audit: AnyAudit | None

    def workflow_of(self, name: str) -> str:
        """The workflow that a source or operator belongs to."""
        return name.partition(WORKFLOW_SEPARATOR)[0] if self.workflows else ""

    @cached_property
    def slo_by_workflow(self) -> Mapping[str, Slo]:
        """Workflow -> its targets."""
        return {workflow.name: workflow.slo for workflow in self.workflows} or {"": self.slo}

    @cached_property
    def survives(self) -> tuple[LossKind, ...]:
        """What may be lost, one at a time, while the targets of some workflow hold."""
        return tuple(dict.fromkeys(kind for slo in self.slo_by_workflow.values() for kind in slo.survives))

    @cached_property
    def audits(self) -> Mapping[str, AnyAudit]:
        """Workflow -> its audit, of those that have one."""
        audits = {workflow.name: workflow.audit for workflow in self.workflows} or {"": self.audit}
        return {name: audit for name, audit in audits.items() if audit is not None}

    def is_of_audit(self, name: str) -> bool:
        """True if a source or operator belongs to the audit of its workflow."""
        local = name.rpartition(WORKFLOW_SEPARATOR)[2]
        return local.startswith(AUDIT_PREFIX) and self.workflow_of(name) in self.audits

    def audited_name(self, name: str) -> str:
        """What a source or operator of an audit stands for; the name itself of any other."""
        workflow, separator, local = name.rpartition(WORKFLOW_SEPARATOR)
        return f"{workflow}{separator}{local.removeprefix(AUDIT_PREFIX)}" if self.is_of_audit(name) else name

    def with_audit_rates(self, rates: Mapping[str, float]) -> Mapping[str, float]:
        """The rates by source, with those of the audits' sources, which are a share of the others."""
        audited = ((name, self.audits.get(self.workflow_of(name)), rate) for name, rate in rates.items())
        return {**rates, **{audit_name(name): audit.share * rate for name, audit, rate in audited if audit is not None}}

    def nodes(self, taken: Callable[[str], bool]) -> dict[str, Any]:
        """The fields `sources` and `operators`, with those alone whose names are `taken`."""
        return {
            "sources": tuple(source for source in self.sources if taken(source.name)),
            "operators": tuple(operator for operator in self.operators if taken(operator.name)),
        }

    @property
    def margin(self) -> Margin:
        """The margin that covers those of all workflows, as these share workers and links."""
        return largest_margin(self.slo_by_workflow.values())

    @property
    def deadlines_s(self) -> Mapping[str, float | None]:
        """Workflow -> p99 latency target in seconds, None without a target."""
        return {name: slo.latency_p99_s for name, slo in self.slo_by_workflow.items()}

    @property
    def deadline_s(self) -> float | None:
        """The longest p99 latency target in seconds; None if no workflow has a target."""
        return max((target_s for target_s in self.deadlines_s.values() if target_s is not None), default=None)

    @cached_property
    def deadline_shares(self) -> Mapping[str, float]:
        """Workflow -> its deadline as a share of the longest; workflows without a deadline are left out.

        If no workflow has a deadline, each has a share of 1.
        """
        targets, longest = self.deadlines_s, self.deadline_s
        if longest is None:
            return dict.fromkeys(targets, 1.0)
        return {name: target_s / longest for name, target_s in targets.items() if target_s is not None}

    def deadline_share(self, operator: str) -> float | None:
        """The deadline of the operator's workflow as a share of the longest; None without one, as an audit is."""
        return None if self.is_of_audit(operator) else self.deadline_shares.get(self.workflow_of(operator))

    def sites_of(self, tier: str) -> int:
        """How many identical sites a tier has."""
        return self.sites.get(tier, 1)

    def rate_in_all_sites(self, source: Source) -> float:
        """Requests per second of a source, summed over all its sites."""
        return source.rate_per_s * self.sites_of(source.tier)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, by downstream operator in topological order."""
        return tuple(edge for operator in self.operators for edge in operator.inputs)

    @cached_property
    def source_by_name(self) -> Mapping[str, Source]:
        return {source.name: source for source in self.sources}

    @cached_property
    def operator_by_name(self) -> Mapping[str, AnyOperator]:
        return {operator.name: operator for operator in self.operators}

    @cached_property
    def link_by_tiers(self) -> Mapping[tuple[str, str], Link]:
        return {link.tiers: link for link in self.links}


@dataclass(frozen=True)
class Problem(Workload[Operator, Audit]):
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
    def may_mix(self) -> bool:
        """True if a plan may give requests unlike selections."""
        means = any(slo.mean_accuracy is not None for slo in self.slo_by_workflow.values())
        return means or self.objective is Objective.MEAN_ACCURACY

    def usable_bytes_per_s(self, link: Link) -> float | None:
        """What of a link's bandwidth a plan may fill, in each site: less where rates have a margin; None: all."""
        if link.bandwidth_bytes_per_s is None:
            return None
        return link.bandwidth_bytes_per_s / (1.0 + self.margin.rates)

    def accuracy_of(self, workflow: str) -> AccuracyModel:
        """The accuracy model of a workflow."""
        return self.accuracy.models[workflow] if isinstance(self.accuracy, Margins) else self.accuracy

    @property
    def accuracy_target(self) -> float | None:
        """Target for `accuracy` in percent; with several workflows the required margin in percent points."""
        if self.slo.accuracy is None and any(workflow.slo.accuracy is not None for workflow in self.workflows):
            return 0.0
        return self.slo.accuracy

    def __post_init__(self) -> None:
        if any(variant.ratios for operator in self.operators for variant in operator.variants):
            object.__setattr__(self, "operators", with_ratios(self.operators, min))
        if isinstance(self.accuracy, Margins):
            object.__setattr__(self, "accuracy", self.accuracy.above(self.slo_by_workflow))

    @cached_property
    def has_forms(self) -> bool:
        """True if some of its operators may have a form."""
        return any(operator.forms for operator in self.operators)

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
    def rate_per_s(self) -> Mapping[str, float]:
        """Requests per second of every source and operator in all sites, with ratios applied along the graph."""
        return along_graph(self.operators, {one.name: self.rate_in_all_sites(one) for one in self.sources})

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
        return pool.price_usd_per_h * self.sites_of(pool.tier)

    @property
    def paid_usd_per_h(self) -> float:
        """USD per hour for reserved workers in all sites, used or not; no part of a plan's cost."""
        return sum(pool.count * pool.paid_usd_per_h * self.sites_of(pool.tier) for pool in self.pools)

    def in_each(self, tier: str) -> str:
        """Text to append to a figure of one site, such as " in each store"; empty if the tier has one site."""
        return f" in each {tier}" if self.sites_of(tier) > 1 else ""

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
