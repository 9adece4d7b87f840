"""A small project as numbers: what features change, what is written as documents, and what the oracle reads.

Times are in seconds, sizes in bytes, rates per second, prices in USD per hour and USD per GiB, accuracies in percent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

NAMES = ("small", "large", "huge")  # of variants
KIB, GIB = 1024.0, 1024.0**3
Times = dict[int, float]  # batch size -> seconds of one batch


@dataclass
class Cut:
    """A model in two parts. `head`, `tail`: pool -> times."""

    crossing_bytes: float
    head: dict[str, Times]
    tail: dict[str, Times]


@dataclass
class Variant:
    """`times`: pool -> times; `memory_bytes`: pool -> memory, if it is limited. `accuracy`: of the operator."""

    name: str
    times: dict[str, Times]
    message_bytes: float
    accuracy: float
    memory_bytes: dict[str, float] = field(default_factory=dict)
    cut: Cut | None = None


@dataclass
class Cascade:
    """Two variants in a row. `passed_on`: share of requests; `step_s`: pool -> seconds of its two small steps."""

    first: str
    then: str
    passed_on: float
    step_s: dict[str, float]
    accuracy: float


@dataclass
class Input:
    """An edge. `ratio`: requests per request of the upstream, or by its variant; `gather`: of all children."""

    upstream: str
    ratio: float | dict[str, float] | None = None
    gather: bool = False
    stays_in: tuple[str, ...] | None = None


@dataclass
class Operator:
    """An operator with one input. `depth`: fan-outs that are open at it."""

    name: str
    input: Input
    variants: list[Variant]
    depth: int = 0
    tiers: tuple[str, ...] | None = None
    has_state: bool = False
    cascade: Cascade | None = None

    @property
    def is_plain(self) -> bool:
        """True if no feature needs the operator for itself."""
        is_whole = all(variant.cut is None for variant in self.variants)
        return is_whole and not self.has_state and self.cascade is None and self.input.ratio is None


@dataclass
class Source:
    """Where requests come from. `streams`: that its rate is made of, if an operator has a state."""

    name: str
    tier: str
    rate_per_s: float
    message_bytes: float
    stays_in: tuple[str, ...] | None = None
    streams: int | None = None
    is_eventual: bool = False


@dataclass
class Workflow:
    """Sources, operators in order, and targets. `mean_accuracy` and `penalty` are of mixtures."""

    name: str
    sources: list[Source]
    operators: list[Operator]
    accuracy: float | None = None
    mean_accuracy: float | None = None
    penalty_usd_per_h: float | None = None
    latency_p99_s: float | None = None
    latency_penalty_usd_per_h_s: float | None = None
    survive: list[str] = field(default_factory=list)
    audit: float | None = None
    margin: tuple[float, float] | None = None  # shares by which times and rates may be higher
    worth_usd_per_h: float | None = None
    priority: int = 0
    objective: str = "cost"

    @property
    def sinks(self) -> list[str]:
        """Operators whose outputs are answers."""
        read = {operator.input.upstream for operator in self.operators}
        return [operator.name for operator in self.operators if operator.name not in read]

    @property
    def may_mix(self) -> bool:
        return self.mean_accuracy is not None or self.objective == "mean_accuracy"


@dataclass
class Pool:
    """A pool of workers."""

    name: str
    tier: str
    count: int
    price_usd_per_h: float
    memory_bytes: float | None = None
    is_exclusive: bool = False
    power_w: float | None = None
    carbon_g_per_kwh: float = 0.0


@dataclass
class Link:
    """A link from one tier to a higher one."""

    upstream: str
    downstream: str
    price_usd_per_gib: float
    bandwidth_bit_per_s: float | None = None
    latency_s: float = 0.0
    energy_wh_per_gib: float = 0.0
    carbon_g_per_kwh: float = 0.0


@dataclass
class Site:
    """A row of the file of sites that differ. None: as the documents say.

    Of several workflows all but the count and the bandwidth are of the first one.
    """

    name: str
    rate_per_s: float | None = None
    box_count: int | None = None
    bandwidth_bit_per_s: float | None = None
    accuracy: float | None = None
    worth_usd_per_h: float | None = None
    priority: int | None = None


@dataclass
class Draft:
    """A project. `sites`: number of identical ones by tier; `rows`: sites of the first tier that differ."""

    workflows: list[Workflow]
    tiers: tuple[str, ...]
    pools: list[Pool]
    links: list[Link]
    rng: random.Random
    sites: dict[str, int] = field(default_factory=dict)
    rows: list[Site] = field(default_factory=list)
    budget_usd_per_h: float | None = None
    utilisation: float = 0.8
    start_usd: float = 0.0  # of a model on a worker, when a plan is changed
    features: list[str] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)  # of energy in W, of carbon in g/h
    energy_usd_per_kwh: float | None = None
    carbon_usd_per_t: float | None = None

    @property
    def counts(self) -> str:
        """What the value of a plan is made of."""
        own = self.workflows[0].objective
        return own if own in ("energy", "carbon") else "cost"

    def uses(self, one: Pool | Link) -> dict[str, float]:
        """What a worker uses in an hour, or a GiB: USD, Wh and grams."""
        usd, wh = (
            (one.price_usd_per_h, one.power_w or 0.0)
            if isinstance(one, Pool)
            else (one.price_usd_per_gib, one.energy_wh_per_gib)
        )
        grams = wh / 1e3 * one.carbon_g_per_kwh
        usd += wh / 1e3 * (self.energy_usd_per_kwh or 0.0) + grams / 1e6 * (self.carbon_usd_per_t or 0.0)
        return {"cost": usd, "energy": wh, "carbon": grams}

    def price(self, one: Pool | Link) -> float:
        """What that counts."""
        usd = {"cost": 1.0, "energy": (self.energy_usd_per_kwh or 1.0) / 1e3, "carbon": 1e-3}
        if self.carbon_usd_per_t:
            usd["carbon"] = self.carbon_usd_per_t / 1e6
        return self.uses(one)[self.counts] * usd[self.counts]

    @property
    def margin(self) -> tuple[float, float]:
        """The largest margin of times and of rates of any workflow: it counts for all, as they share workers."""
        stated = [workflow.margin for workflow in self.workflows if workflow.margin is not None]
        return max((own[0] for own in stated), default=0.0), max((own[1] for own in stated), default=0.0)

    @property
    def is_several(self) -> bool:
        return len(self.workflows) > 1

    def without_last(self) -> Draft:
        """The project before its last workflow, or its last site, came."""
        if self.is_several:
            return replace(self, workflows=self.workflows[:-1])
        return replace(self, rows=self.rows[:-1])


@dataclass(frozen=True)
class Served:
    """A workflow in one place: of all sites that are alike, or of one row. `tier`: what its first tier is called."""

    name: str
    workflow: Workflow
    tier: str
    sites: int
    row: Site | None

    def renamed(self, tiers: tuple[str, ...] | None, first: str) -> tuple[str, ...] | None:
        return None if tiers is None else tuple(self.tier if tier == first else tier for tier in tiers)


def served(draft: Draft) -> Iterator[Served]:
    """Each workflow, in each site if they differ."""
    first = draft.tiers[0]
    for workflow in draft.workflows:
        if not draft.rows:
            yield Served(workflow.name, workflow, first, draft.sites.get(first, 1), None)
        for row in draft.rows:
            changed = replace(workflow)
            if workflow is not draft.workflows[0]:
                yield Served(f"{row.name}/{workflow.name}", changed, f"{first}/{row.name}", 1, row)
                continue
            if row.accuracy is not None:
                changed.accuracy = row.accuracy
            if row.rate_per_s is not None:
                changed.sources = [
                    replace(source, rate_per_s=row.rate_per_s) if source.name == "camera" else source
                    for source in workflow.sources
                ]
            if row.worth_usd_per_h is not None:
                changed.worth_usd_per_h = row.worth_usd_per_h
            if row.priority is not None:
                changed.priority = row.priority
            yield Served(f"{row.name}/{workflow.name}", changed, f"{first}/{row.name}", 1, row)


def scaled(draft: Draft, factor: float) -> Draft:
    """The project with other rates."""
    workflows = [
        replace(one, sources=[replace(source, rate_per_s=factor * source.rate_per_s) for source in one.sources])
        for one in draft.workflows
    ]
    rows = [replace(row, rate_per_s=None if row.rate_per_s is None else factor * row.rate_per_s) for row in draft.rows]
    return replace(draft, workflows=workflows, rows=rows)


def times(rng: random.Random, low_s: float, high_s: float) -> Times:
    return {1: round(rng.uniform(low_s, high_s), 4)}


def variants(rng: random.Random, number: int, pools: list[Pool]) -> list[Variant]:
    """Variants of one operator: later ones are slower and, most of them, more accurate."""
    found = []
    for index in range(number):
        slower = 1.0 + 1.5 * index
        own = {}
        for pool in pools:
            fastest_s, slowest_s = (0.02, 0.08) if pool.tier == "edge" else (0.004, 0.02)
            own[pool.name] = times(rng, slower * fastest_s, slower * slowest_s)
        if index and rng.random() < 0.25:  # the first variant runs in all pools
            own.pop(rng.choice(sorted(own)))
        accuracy = round(rng.uniform(70, 88) + 8.0 * index, 1)
        found.append(Variant(NAMES[index], own, round(rng.uniform(1, 40)) * KIB, accuracy))
    return found


def base(rng: random.Random) -> Draft:
    """One workflow of one or two operators, in one or two tiers."""
    pools = [
        Pool("box", "edge", rng.randint(2, 6), round(rng.uniform(0.03, 0.2), 3)),
        Pool("gpu", "cloud", rng.randint(2, 4), round(rng.uniform(0.1, 0.7), 3)),
    ]
    links = [Link("edge", "cloud", round(rng.uniform(0.0, 0.06), 3), latency_s=rng.choice((0.0, 0.01, 0.03)))]
    draft = Draft([], ("edge", "cloud"), pools, links, rng)
    draft.workflows.append(workflow(draft, "one"))
    return draft


def workflow(draft: Draft, name: str) -> Workflow:
    """A random workflow on the draft's fleet."""
    rng = draft.rng
    source = Source("camera", "edge", round(rng.uniform(2, 25), 1), round(rng.uniform(10, 300)) * KIB)
    found = Workflow(name, [source], [])
    found.operators.append(Operator("detect", Input("camera"), variants(rng, 2, draft.pools)))
    if rng.random() < 0.5:
        found.operators.append(Operator("classify", Input("detect"), variants(rng, rng.randint(1, 2), draft.pools)))
    if rng.random() < 0.5:
        found.accuracy = round(rng.uniform(40, 75), 1)
    return found
