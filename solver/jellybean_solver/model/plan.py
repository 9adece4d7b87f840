"""The plan: selection, workers, routes, cost and optimality certificate; all that a deployment needs.

A plan may mix variants: some workers of an operator run one of them, others another, and each request takes those of
the workers on its route. `plan_document` turns it into a versioned, content-hashed JSON document and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from jellybean_solver.model.audit import PlannedAudit
from jellybean_solver.model.model_ref import ModelRef
from jellybean_solver.model.problem import CPU, Link, Objective, Sharing, Terms, Workload
from jellybean_solver.model.targets import Slo
from jellybean_solver.model.workflow import Edge, Source, Stage, Times, request_s
from jellybean_solver.outcome import ACCURACY_TOLERANCE, Termination, is_gap_closed, relative_gap

LEAST_PENALTY = 1e-9  # USD per hour; a penalty below it is a rounding error


@dataclass(frozen=True, slots=True)
class Cost:
    """USD per hour."""

    compute_usd_per_h: float = 0.0
    network_usd_per_h: float = 0.0

    @property
    def total_usd_per_h(self) -> float:
        return self.compute_usd_per_h + self.network_usd_per_h

    def __add__(self, more: Cost) -> Cost:
        return Cost(self.compute_usd_per_h + more.compute_usd_per_h, self.network_usd_per_h + more.network_usd_per_h)


@dataclass(frozen=True, slots=True)
class Certificate:
    """How close a plan is to the optimum: objective and lower bound in USD per hour, and why the search ended.

    `objective_of`: what was optimised; with MEAN_ACCURACY the two are percent, and the bound is an upper one. With
    ENERGY and CARBON they are USD per hour at the price of that resource alone (`counted`).
    `forgone_usd_per_h`: what the workflows that are left out are worth. `penalty_usd_per_h`: for an accuracy below a
    soft target and a p99 latency above one. Both are parts of objective and bound.
    `keeps`: number of workflows whose workers and routes were given; the bound is of the plans that leave them so, and
    that use no worker of which they leave less than 2 %.
    """

    objective: float
    bound: float
    gap: float  # (objective - bound) / objective; 0 if proven optimal
    termination: Termination
    objective_of: Objective = field(default=Objective.COST, metadata={"said": "unless it is the cost"})
    keeps: int = field(default=0, metadata={"said": "unless 0"})
    forgone_usd_per_h: float = field(default=0.0, metadata={"said": "unless 0"})
    penalty_usd_per_h: float = field(default=0.0, metadata={"said": "unless 0"})

    @classmethod
    def of(cls, objective: float, bound: float, termination: Termination) -> Certificate:
        """The certificate for an objective and a lower bound; its termination is OPTIMAL if the two are equal."""
        if termination == Termination.OPTIMAL or is_gap_closed(objective, bound):
            return cls(objective, objective, 0.0, Termination.OPTIMAL)
        return cls(objective, bound, relative_gap(objective, bound), termination)

    @classmethod
    def of_accuracy(cls, accuracy: float, bound: float, termination: Termination) -> Certificate:
        """The certificate for a mean accuracy that is maximised, and an upper bound on it."""
        if bound - accuracy <= ACCURACY_TOLERANCE:
            return cls(accuracy, accuracy, 0.0, Termination.OPTIMAL, Objective.MEAN_ACCURACY)
        return cls(accuracy, bound, (bound - accuracy) / accuracy, termination, Objective.MEAN_ACCURACY)

    def with_cost(self, usd_per_h: float) -> Certificate:
        """The certificate when every plan costs so much more; nothing changes where the accuracy is maximised."""
        if self.objective_of is Objective.MEAN_ACCURACY:
            return self
        proof = Certificate.of(self.objective + usd_per_h, self.bound + usd_per_h, self.termination)
        return replace(self, objective=proof.objective, bound=proof.bound, gap=proof.gap, termination=proof.termination)

    def bounded_by(self, other: Certificate) -> Certificate:
        """The certificate of the same plan, with the bound that `other` has proven."""
        if self.objective_of is Objective.MEAN_ACCURACY:
            return Certificate.of_accuracy(self.objective, max(self.objective, other.bound), other.termination)
        proof = Certificate.of(self.objective, min(self.objective, other.bound), other.termination)
        return replace(self, bound=proof.bound, gap=proof.gap, termination=proof.termination)

    @property
    def is_optimal(self) -> bool:
        """True if it is proven that no plan costs less."""
        return self.termination == Termination.OPTIMAL and not self.keeps


@dataclass(frozen=True, slots=True)
class PlannedOperator:
    """An operator with its chosen variant, its inputs, and its figures in the pools that the plan uses for it.

    `others`: filled if the plan mixes variants; the same of each further variant. `rate_per_s` and the ratios of
    `inputs` are then those of all requests together, and `ratios` has the variant's own, by downstream operator.
    """

    name: str
    inputs: tuple[Edge, ...]
    variant: str
    batch: Mapping[str, int]  # pool -> largest number of requests per batch
    rate_per_s: float
    service: Mapping[str, Times]  # pool -> service times of all profiled batch sizes up to the pool's `batch`
    message_bytes: Mapping[str, float]  # downstream -> bytes per message
    memory_bytes: Mapping[str, float]  # pool -> bytes
    model: ModelRef | None = None
    children: tuple[float, ...] = ()  # fraction of outputs with 0, 1, 2, ... rows; empty if not measured
    stage: Stage | None = None  # set if the operator runs one part of a model that is cut in two (forms.py)
    batch_delay_s: float = field(default=0.0, metadata={"said": "unless 0"})  # as in `Operator`
    device_memory_bytes: Mapping[str, float] = field(  # pool -> bytes of the device's own memory
        default_factory=dict, metadata={"said": "if there are any"}
    )
    state: tuple[tuple[str, str], ...] = field(default=(), metadata={"said": "if it keeps one"})  # as in `Operator`
    ratios: Mapping[str, float] = field(default_factory=dict, metadata={"said": "if the plan mixes variants"})
    others: tuple[PlannedOperator, ...] = field(default=(), metadata={"said": "if the plan mixes variants"})

    @property
    def variants(self) -> tuple[PlannedOperator, ...]:
        """The operator with each of its variants: itself, then `others`."""
        return (self, *self.others)

    def with_variant(self, name: str) -> PlannedOperator:
        """The operator with one of its variants; KeyError if the plan does not use it."""
        for one in self.variants:
            if one.variant == name:
                return one
        raise KeyError(name)

    @property
    def label(self) -> str:
        """The variant's name, for a stage of a cut model with its layers: `big.8-12`."""
        stage = self.stage
        return self.variant if stage is None else f"{stage.variant}.{stage.first}-{stage.last}"

    def request_s(self, pool: str) -> float:
        """Seconds of a worker's time per request in full batches, from `load_s`, the time for capacity planning.

        0 without a profile of its batch size in the pool.
        """
        times, batch = self.service.get(pool, {}), self.batch.get(pool, 0)
        return request_s(times, batch) if batch in times else 0.0

    def mean_request_s(self, pool: str) -> float:
        """Mean seconds of a worker's time per request in full batches, from `mean_s`."""
        return self.service[pool][self.batch[pool]].mean_s / self.batch[pool]


def whole_selection(operators: Iterable[PlannedOperator]) -> Mapping[str, str]:
    """Operator -> variant, where the stages of a cut model are those of their operator."""
    stages = (
        (one.name, one.variant) if one.stage is None else (one.stage.operator, one.stage.variant) for one in operators
    )
    return dict(stages)


@dataclass(frozen=True, slots=True)
class PlannedWorker:
    """One worker, in each site of its tier. `rates_per_s`: operator -> requests per second planned for this worker.

    `variants`: operator -> the variant that it runs here, for operators of which the plan mixes variants.
    """

    name: str  # pool-1, pool-2, ...
    pool: str
    tier: str
    price_usd_per_h: float
    sharing: Sharing
    rates_per_s: Mapping[str, float]
    load: float  # busy fraction: sum of rate x request_s
    memory_bytes: float | None = None  # capacity of the worker
    speed: float = 1.0
    device: str = field(default=CPU, metadata={"said": "unless cpu"})  # as in `Pool`, like its options
    device_options: tuple[tuple[str, str], ...] = field(default=(), metadata={"said": "if there are any"})
    device_memory_bytes: float | None = field(default=None, metadata={"said": "if it is stated"})
    variants: Mapping[str, str] = field(default_factory=dict, metadata={"said": "if the plan mixes variants"})
    terms: Terms = field(default=Terms.ON_DEMAND, metadata={"said": "unless on demand"})


@dataclass(frozen=True, slots=True)
class Route:
    """One path of requests through the plan. `workers`: operator -> worker; `weight`: fraction of all requests.

    A route covers all operators of a workflow, with several workflows of one or more of them. The weights of the routes
    of each workflow sum to 1.
    """

    weight: float
    workers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Placement:
    """An operator in a worker pool, summed over its workers. `load`: mean busy fraction of those workers.

    `count`: workers in each of `sites` sites; `rate_per_s`: requests per second of all sites together.
    """

    operator: str
    variant: str
    pool: str
    tier: str
    count: int
    batch: int
    rate_per_s: float
    load: float
    sites: int = 1


@dataclass(frozen=True, slots=True)
class PlannedWorkflow:
    """One of several workflows of a plan: its targets, and the accuracy and cost that the plan gives it.

    `cost` is its part of the plan's cost: the traffic of its edges, and each worker's price in proportion to the busy
    time that the workflow causes. `worth_usd_per_h`, `owner`: as in `Workflow`. `audit`: as in `Plan`.
    """

    name: str
    slo: Slo
    accuracy: float | None
    cost: Cost
    worth_usd_per_h: float | None = field(default=None, metadata={"said": "if it is stated"})
    owner: str = field(default="", metadata={"said": "if it is stated"})
    audit: PlannedAudit | None = field(default=None, metadata={"said": "if there is one"})


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A workflow that the plan does not serve, as it costs more than it is worth, or too little is left for it."""

    name: str
    worth_usd_per_h: float
    owner: str = field(default="", metadata={"said": "if it is stated"})


@dataclass(frozen=True, slots=True)
class Fallback:
    """What becomes of the requests when something is lost (loss.py). `lost`: what, in words.

    `closes`: numbers of the routes that it closes. `weights`: of the plan's routes then; empty: the proportions of
    those that are left. The weights of a workflow whose targets do not hold then may sum to less than 1: so much of its
    requests is served, and the others are refused until what was lost is back.
    """

    lost: str
    closes: tuple[int, ...]
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Plan(Workload[PlannedOperator, PlannedAudit]):
    """Selection, placements and routes, with cost and certificate.

    `workflows`: filled if there are several; `slo` then holds only the budget and `accuracy` is None. A request follows
    a route of its own workflow. `left_out`: those that are not served; nothing else of the plan mentions them.

    `sites`: tier -> number of identical sites, for tiers with more than one (sites.py). A worker then stands for one
    worker in each site. Sources and links are those of one site; rates of operators, route weights and costs cover all
    sites together.

    `overrides`: the values PATH=VALUE by which the documents were changed for this plan (`--set`), in their order.

    `spread`: operator below a fan-out -> groups of workers round which the children of each request go (spreading.py).

    `fallbacks`: of every loss that the plan bears, if after some the routes left would not do in their proportions.

    `audit`: a share of the requests also runs a reference, by the operators audit.NAME (audit.py); those of several
    workflows are in `workflows`.

    `uses`: resource -> what workers and traffic use of it, in all sites: W of energy, g/h of carbon (resources.py).
    """

    name: str
    tiers: tuple[str, ...]
    sources: tuple[Source, ...]
    operators: tuple[PlannedOperator, ...]  # topological order
    workers: tuple[PlannedWorker, ...]
    routes: tuple[Route, ...]
    links: tuple[Link, ...]
    slo: Slo
    utilisation: float
    hop_s: float
    cost: Cost
    accuracy: float | None
    certificate: Certificate
    sites: Mapping[str, int] = field(default_factory=dict)
    workflows: tuple[PlannedWorkflow, ...] = ()
    left_out: tuple[LeftOut, ...] = field(default=(), metadata={"said": "if there are any"})
    stale_profiles: tuple[str, ...] = field(default=(), metadata={"said": "if there are any"})  # as in `Problem`
    overrides: tuple[str, ...] = field(default=(), metadata={"said": "if there are any"})
    spread: Mapping[str, tuple[tuple[str, ...], ...]] = field(
        default_factory=dict, metadata={"said": "if children are spread"}
    )
    fallbacks: tuple[Fallback, ...] = field(default=(), metadata={"said": "if there are any"})
    audit: PlannedAudit | None = field(default=None, metadata={"said": "if there is one"})
    uses: Mapping[str, float] = field(default_factory=dict, metadata={"said": "if any are stated"})

    @property
    def accuracy_penalty_usd_per_h(self) -> float:
        """What the plan counts for all that it lacks of soft mean accuracies."""
        workflows = sum(workflow.slo.penalty(workflow.accuracy) for workflow in self.workflows)
        return self.slo.penalty(self.accuracy) + workflows

    @property
    def mean_accuracy(self) -> float | None:
        """The accuracy of all requests; of several workflows their mean, one weight each, 0 for one that is left out.

        None if one of them has none.
        """
        if not self.workflows:
            return self.accuracy
        known = [workflow.accuracy for workflow in self.workflows if workflow.accuracy is not None]
        count = len(self.workflows) + len(self.left_out)
        return sum(known) / count if len(known) == len(self.workflows) else None

    @property
    def forgone_usd_per_h(self) -> float:
        """What the workflows that the plan leaves out are worth."""
        return sum(one.worth_usd_per_h for one in self.left_out)

    @property
    def late_usd_per_h(self) -> float:
        """What its p99 latencies count above soft targets, as its certificate states it; 0 if all of these are met."""
        slos = [workflow.slo for workflow in self.workflows] or [self.slo]
        late = self.certificate.penalty_usd_per_h - self.accuracy_penalty_usd_per_h
        return late if late > LEAST_PENALTY and any(slo.soft_latency_p99_s is not None for slo in slos) else 0.0

    @property
    def counted_usd_per_h(self) -> float:
        """What the plan counts beside its p99 latencies: its cost, what it lacks of accuracies, and what it forgoes."""
        return self.cost.total_usd_per_h + self.accuracy_penalty_usd_per_h + self.forgone_usd_per_h

    @cached_property
    def selection(self) -> Mapping[str, str]:
        """Operator -> its variant; where the plan mixes variants, the first of them."""
        return {operator.name: operator.variant for operator in self.operators}

    @cached_property
    def variants(self) -> tuple[PlannedOperator, ...]:
        """Every operator with each of its variants."""
        return tuple(one for operator in self.operators for one in operator.variants)

    @cached_property
    def mixes(self) -> bool:
        """True if an operator has several variants, so that requests get different selections."""
        return any(operator.others for operator in self.operators)

    def operator_at(self, name: str, worker: str) -> PlannedOperator:
        """An operator with the variant that a worker runs."""
        operator = self.operator_by_name[name]
        variant = self.worker_by_name[worker].variants.get(name) if operator.others else None
        return operator if variant is None else operator.with_variant(variant)

    def load_of(self, worker: PlannedWorker) -> float:
        """The fraction of time that a worker is busy at its rates."""
        return sum(
            rate * self.operator_at(name, worker.name).request_s(worker.pool)
            for name, rate in worker.rates_per_s.items()
        )

    @cached_property
    def worker_by_name(self) -> Mapping[str, PlannedWorker]:
        return {worker.name: worker for worker in self.workers}

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """One placement per operator, variant and worker pool, operators in topological order."""
        serving: dict[tuple[str, str], dict[str, list[PlannedWorker]]] = {}
        for worker in self.workers:
            for name in worker.rates_per_s:
                by_pool = serving.setdefault((name, self.operator_at(name, worker.name).variant), {})
                by_pool.setdefault(worker.pool, []).append(worker)
        return tuple(
            self._placement(operator, workers)
            for operator in self.variants
            for workers in serving.get((operator.name, operator.variant), {}).values()
        )

    def _placement(self, operator: PlannedOperator, workers: Sequence[PlannedWorker]) -> Placement:
        pool, tier = workers[0].pool, workers[0].tier
        rate, sites = sum(worker.rates_per_s[operator.name] for worker in workers), self.sites_of(tier)
        return Placement(
            operator=operator.name,
            variant=operator.label,
            pool=pool,
            tier=tier,
            count=len(workers),
            batch=operator.batch[pool],
            rate_per_s=rate * sites,
            load=rate * operator.request_s(pool) / len(workers),
            sites=sites,
        )
