"""The only scorer: a plan's cost and feasibility, recomputed from its routes and workers alone.

The objective of the assignment, the report, the baselines and the tests are compared with its result. Costs, rates and
loads that are written in the plan are ignored and recomputed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from jellybean_solver.errors import SolverError
from jellybean_solver.figures import distinct_sizes, distinct_usd, listed, rate_text, size_text, usd_text
from jellybean_solver.model.audit import PlannedAudit
from jellybean_solver.model.flows import Weights, edge_weights, traffic_usd_per_h, worker_shares
from jellybean_solver.model.forms import as_planned
from jellybean_solver.model.left_out import served, wrongly_left_out
from jellybean_solver.model.loss import RoutesAfterLoss
from jellybean_solver.model.loss_checks import losses_that_break
from jellybean_solver.model.plan import Cost, Fallback, Plan, PlannedWorker, PlannedWorkflow, Route
from jellybean_solver.model.planned_audits import planned_audits
from jellybean_solver.model.problem import Problem, Sharing
from jellybean_solver.model.reached_accuracy import accuracy_violations, mean, reached
from jellybean_solver.model.resources import amount_text, used
from jellybean_solver.model.selection_shares import routes_by_selection
from jellybean_solver.model.spreading import spread_complaints
from jellybean_solver.model.targets import LIMIT_TOLERANCE
from jellybean_solver.model.variant_ratios import settled
from jellybean_solver.model.workflow import Variant, request_s
from jellybean_solver.outcome import Selection


@dataclass(frozen=True, slots=True)
class Crossing:
    """Traffic of one edge between two tiers."""

    upstream: str
    downstream: str
    upstream_tier: str
    downstream_tier: str
    bytes_per_s: float
    cost_usd_per_h: float


@dataclass(frozen=True)
class Evaluation:
    """Result of `evaluate`. `violations` and `breaches` are sentences for the user; both empty for a feasible plan."""

    cost: Cost
    accuracy: float | None
    rates_per_s: Mapping[tuple[str, str], float]  # (operator, worker) -> requests per second, in one site
    loads: Mapping[str, float]  # worker -> busy fraction
    crossings: tuple[Crossing, ...]
    by_operator: Mapping[str, Cost]  # compute by share of its workers' load, network by the edges into it
    violations: tuple[str, ...]  # the plan contradicts the problem: rates, capacity, memory, tiers, links, accuracy
    breaches: tuple[str, ...]  # limits that a consistent plan may break: the budget, those of resources
    workflows: tuple[PlannedWorkflow, ...] = ()  # filled if there are several workflows; `accuracy` is then None
    uses: Mapping[str, float] = field(default_factory=dict)  # resource -> amount (resources.py)

    @property
    def complaints(self) -> tuple[str, ...]:
        """All violations and breaches."""
        return self.violations + self.breaches

    def checked(self, plan: Plan, *, within_budget: bool = True) -> Plan:
        """The plan with its cost and accuracy. SolverError if it contradicts the problem: a fault of the solver."""
        wrong = self.complaints if within_budget else self.violations
        if wrong:
            text = listed(wrong, between="; ")
            raise SolverError(f"the plan found contradicts the problem ({text}); please report this problem")
        return self.stated(plan)

    def stated(self, plan: Plan) -> Plan:
        """The plan with its cost, uses and accuracy replaced by those of this evaluation."""
        return replace(plan, cost=self.cost, accuracy=self.accuracy, workflows=self.workflows, uses=self.uses)


def evaluate(problem: Problem, plan: Plan) -> Evaluation:
    """Score `plan` as an answer to `problem`, with the fan-out ratios of the plan's variants.

    If the plan mixes variants, its accuracy is the mean over all requests. Workflows that it leaves out are not looked
    at, but that they may be left out is.
    """
    forgone = tuple(wrongly_left_out(problem, plan))
    problem = as_planned(served(problem, plan), plan)
    scorer = _Scorer(problem, plan)
    problem = scorer.problem
    cost = scorer.cost
    selections = scorer.selections if not scorer.unknown else None
    accuracies = {} if selections is None else {name: mean(own) for name, own in reached(problem, selections).items()}
    audits = {} if selections is None else planned_audits(problem, plan, selections)
    by_operator = scorer.cost_by_operator()
    violations = (
        *scorer.unknown,
        *scorer.wrong_routes(),
        *scorer.wrong_sites(),
        *scorer.wrong_rates(),
        *scorer.wrong_workers(),
        *scorer.wrong_tiers(),
        *scorer.over_memory(),
        *scorer.over_bandwidth(),
        *accuracy_violations(problem, selections),
        *scorer.losses(),
        *(() if scorer.unknown else spread_complaints(plan)),
        *forgone,
    )
    uses = used(problem, plan.workers, carried_bytes_per_s(scorer.crossings))
    breaches = (*_over_budget(problem, cost), *_over_limits(problem, uses))
    return Evaluation(
        cost,
        accuracies.get("") if not problem.workflows else None,
        scorer.rates,
        scorer.loads,
        scorer.crossings,
        by_operator,
        violations,
        breaches,
        tuple(_by_workflow(problem, accuracies, by_operator, audits)),
        uses,
    )


def cost_and_traffic(problem: Problem, plan: Plan) -> tuple[Cost, tuple[Crossing, ...]]:
    """The cost of a plan of a problem and its traffic between tiers, as `evaluate` has them; nothing is checked."""
    scorer = _Scorer(problem, plan)
    return scorer.cost, scorer.crossings


class _Scorer:
    """`parts`: the plan's selections, each with its routes and the problem with its fan-out ratios.

    `open_problem`: with the variants and ratios of all of them; `problem`: with those of each operator's first variant.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.open_problem, self.plan = problem, plan
        self.unknown = tuple(unknown_choices(problem, plan))
        chosen: Iterable[tuple[Selection, Sequence[Route]]] = [(plan.selection, plan.routes)]
        if plan.mixes and not self.unknown and not _has_gaps(problem, plan):
            chosen = routes_by_selection(plan)
        self.parts = [(selection, routes, settled(problem, selection)) for selection, routes in chosen]
        self.problem = settled(problem, plan.selection)

    @property
    def cost(self) -> Cost:
        sites = self.problem.sites
        compute = sum(worker.price_usd_per_h * sites.get(worker.tier, 1) for worker in self.plan.workers)
        return Cost(compute, sum(crossing.cost_usd_per_h for crossing in self.crossings))

    @property
    def selections(self) -> Sequence[tuple[Selection, float]]:
        """The plan's selections with the fraction of requests that get each."""
        return [(selection, sum(route.weight for route in routes)) for selection, routes, _ in self.parts]

    @cached_property
    def rates(self) -> Mapping[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for _, routes, problem in self.parts:
            for key, share in worker_shares(routes).items():
                rate = problem.rate_per_s.get(key[0], 0.0) * share / self._sites(key[1])
                found[key] = found.get(key, 0.0) + rate
        return found

    @cached_property
    def variants(self) -> Mapping[tuple[str, str], Variant]:
        """(Operator, variant) -> the problem's variant."""
        return {
            (operator.name, variant.name): variant
            for operator in self.open_problem.operators
            for variant in operator.variants
        }

    def _sites(self, worker_name: str) -> int:
        worker = self.plan.worker_by_name.get(worker_name)
        return self.problem.sites_of(worker.tier) if worker is not None else 1

    @cached_property
    def shares(self) -> Mapping[tuple[str, str], float]:
        """(operator, worker) -> fraction of time that the worker is busy with this operator."""
        found: dict[tuple[str, str], float] = {}
        for (name, worker_name), rate in self.rates.items():
            worker = self.plan.worker_by_name.get(worker_name)
            if worker is None or name not in self.problem.operator_by_name or self.unknown:
                continue
            operator = self.plan.operator_at(name, worker_name)
            service = self.variants[name, operator.variant].service.get(worker.pool, {})
            batch = operator.batch.get(worker.pool, 0)
            if batch in service:
                found[name, worker_name] = rate * request_s(service, batch)
        return found

    @cached_property
    def hosted(self) -> Mapping[str, tuple[str, ...]]:
        """Worker -> the operators that run on it in some route."""
        found: dict[str, list[str]] = {}
        for name, worker in self.rates:
            found.setdefault(worker, []).append(name)
        return {worker: tuple(names) for worker, names in found.items()}

    @cached_property
    def edges(self) -> Weights:
        """(edge, upstream tier, downstream tier) -> fraction of requests."""
        return edge_weights(self.plan.routes, self.problem.edges, self._tier)

    @cached_property
    def loads(self) -> Mapping[str, float]:
        loads = dict.fromkeys(self.plan.worker_by_name, 0.0)
        for (_, worker), share in self.shares.items():
            loads[worker] += share
        return loads

    @cached_property
    def crossings(self) -> tuple[Crossing, ...]:
        return () if self.unknown else tuple(self._crossings())

    def _crossings(self) -> Iterator[Crossing]:
        sent: dict[tuple[str, str, str, str], float] = {}
        for selection, routes, problem in self.parts:
            weights = self.edges if len(self.parts) == 1 else edge_weights(routes, problem.edges, self._tier)
            for (edge, *tiers), weight in weights.items():
                if tiers[0] != tiers[1]:
                    per_s = weight * problem.edge_rate_per_s(edge) * problem.message_bytes(edge, selection)
                    key = edge.upstream, edge.downstream, tiers[0], tiers[1]
                    sent[key] = sent.get(key, 0.0) + per_s
        for key, per_s in sent.items():
            link = self.problem.link_by_tiers.get(key[2:])
            cost = traffic_usd_per_h(per_s, link.price_usd_per_gib if link is not None else 0.0)
            yield Crossing(*key, per_s, cost)

    def _tier(self, route: Route, name: str) -> str | None:
        source = self.problem.source_by_name.get(name)
        if source is not None:
            return source.tier
        worker = self.plan.worker_by_name.get(route.workers.get(name, ""))
        return worker.tier if worker is not None else None

    def wrong_routes(self) -> Iterator[str]:
        operators: dict[str, list[str]] = {}  # workflow -> its operators
        for name in self.problem.operator_by_name:
            operators.setdefault(self.problem.workflow_of(name), []).append(name)
        total = dict.fromkeys(operators, 0.0)
        wrong: list[str] = []
        for number, route in enumerate(self.plan.routes, 1):
            if route.weight < 0:
                wrong.append(f"route {number} has weight {route.weight:.6g}, below 0")
            covered = {self.problem.workflow_of(name) for name in route.workers} if self.problem.workflows else {""}
            if len(covered) > 1 and self.plan.mixes:
                wrong.append(f"route {number} is of several workflows, but a plan that mixes variants has one on each")
            for workflow in sorted(covered & operators.keys()):
                total[workflow] += route.weight
                missing = [name for name in operators[workflow] if name not in route.workers]
                wrong += [f"route {number} leaves out operator {name}" for name in missing]
            strange = [(n, w) for n, w in route.workers.items() if w not in self.plan.worker_by_name]
            wrong += [f"route {number} sends {n} to {w}, which is no worker of the plan" for n, w in strange]
        for workflow, weight in total.items():
            if abs(weight - 1.0) > LIMIT_TOLERANCE:
                of = f" of {workflow}" if workflow else ""
                yield f"the routes' weights{of} sum to {weight:.9g} instead of 1"
        yield from wrong

    def wrong_rates(self) -> Iterator[str]:
        for (name, worker_name), rate in self.rates.items():
            worker = self.plan.worker_by_name.get(worker_name)
            stated = worker.rates_per_s.get(name, 0.0) if worker is not None else rate
            if abs(stated - rate) > LIMIT_TOLERANCE * max(rate, stated):
                yield f"{worker_name} states {rate_text(stated)} of {name}, but the routes bring {rate_text(rate)}"
        for worker in self.plan.workers:
            for name in worker.rates_per_s:
                if (name, worker.name) not in self.rates:
                    yield f"{worker.name} states a rate of {name}, but no route brings any"

    def wrong_sites(self) -> Iterator[str]:
        for tier in self.problem.tiers:
            stated, sites = self.plan.sites_of(tier), self.problem.sites_of(tier)
            if stated != sites:
                yield f"the plan is for {stated:,} sites of {tier}, of which there are {sites:,}"

    def wrong_workers(self) -> Iterator[str]:
        for worker in self.plan.workers:
            yield from self._wrong_worker(worker)
        for pool_name, count in Counter(worker.pool for worker in self.plan.workers).items():
            pool = self.problem.pool_by_name.get(pool_name)
            if pool is not None and count > pool.count:
                yield f"the plan uses {count} workers of pool {pool_name}, which has {pool.count}"
        if len(self.plan.worker_by_name) < len(self.plan.workers):
            yield "two workers have the same name"

    def _wrong_worker(self, worker: PlannedWorker) -> Iterator[str]:
        pool = self.problem.pool_by_name.get(worker.pool)
        if pool is None:
            yield f"{worker.name} is of pool {worker.pool}, which does not exist"
            return
        if (worker.tier, worker.price_usd_per_h) != (pool.tier, pool.price_usd_per_h):
            yield f"{worker.name} states another tier or price than its pool {pool.name}"
        hosted = self.hosted.get(worker.name, ())
        if not hosted:
            yield f"{worker.name} is paid for but serves nothing"
        if pool.sharing is Sharing.EXCLUSIVE and len(hosted) > 1:
            yield f"{worker.name} is exclusive but serves {', '.join(hosted)}"
        for name in hosted:
            if (name, worker.name) not in self.shares and not self.unknown:
                yield self._no_profile(name, worker)
            elif name in self.problem.unbatched:
                yield from self._batched(name, worker)
        load, cap = self.loads[worker.name], self.problem.utilisation
        if load > cap * (1 + LIMIT_TOLERANCE):
            yield f"{worker.name} would be busy {load:.4f} of the time, above the cap of {cap:g}"

    def _batched(self, name: str, worker: PlannedWorker) -> Iterator[str]:
        operator = self.plan.operator_at(name, worker.name)
        if operator.batch[worker.pool] > 1 and not self.variants[name, operator.variant].counts_rows:
            yield f"{worker.name} runs {name} in batches, but it gathers or fans out"

    def _no_profile(self, name: str, worker: PlannedWorker) -> str:
        operator = self.plan.operator_at(name, worker.name)
        size = operator.batch.get(worker.pool)
        at = "any batch size" if size is None else f"batch size {size}"
        return f"{worker.name} cannot run {name} with variant {operator.variant}: no profile at {at}"

    def wrong_tiers(self) -> Iterator[str]:
        known = self.problem.tier_index  # `_wrong_worker` names a worker in any other tier
        for crossing in self.crossings:
            if crossing.upstream_tier not in known or crossing.downstream_tier not in known:
                continue
            if not self.problem.can_flow(crossing.upstream_tier, crossing.downstream_tier):
                yield (
                    f"{crossing.upstream} -> {crossing.downstream} would flow from tier {crossing.upstream_tier} to "
                    f"{crossing.downstream_tier}, for which there is no link up the tiers"
                )
        yield from self._residency()

    def _residency(self) -> Iterator[str]:
        for (name, worker_name), rate in self.rates.items():
            worker, operator = self.plan.worker_by_name.get(worker_name), self.problem.operator_by_name.get(name)
            allowed = operator.tiers if operator is not None else None
            if worker is not None and allowed is not None and worker.tier not in allowed:
                where = ", ".join(allowed)
                yield f"{name} would run in tier {worker.tier} at {rate_text(rate, 4)}, but may run in {where} only"
        for edge, *tiers in self.edges:
            if edge.tiers is not None and (outside := [tier for tier in tiers if tier not in edge.tiers]):
                yield (
                    f"{edge.upstream} -> {edge.downstream} would have its data in tier {outside[0]}, "
                    f"but may be in {', '.join(edge.tiers)} only"
                )

    def over_memory(self) -> Iterator[str]:
        for worker in self.plan.workers:
            pool = self.problem.pool_by_name.get(worker.pool)  # none: `_wrong_worker` says so
            if pool is None or self.unknown:
                continue
            hosted = [name for name in self.hosted.get(worker.name, ()) if (name, worker.name) in self.shares]
            variants = [self.variants[name, self.plan.operator_at(name, worker.name).variant] for name in hosted]
            for which, limit, tables in (
                ("memory", pool.memory_bytes, [variant.memory_bytes for variant in variants]),
                ("device memory", pool.device_memory_bytes, [variant.device_memory_bytes for variant in variants]),
            ):
                needed = sum(table.get(pool.name, 0.0) for table in tables)
                if limit is not None and needed > limit * (1 + LIMIT_TOLERANCE):
                    held, allowed = distinct_sizes(needed, limit)
                    yield (
                        f"{which}: {worker.name} would hold {', '.join(hosted)} in {held}, "
                        f"{size_text(needed - limit)} more than its {allowed}"
                    )

    def over_bandwidth(self) -> Iterator[str]:
        for tiers, carries in carried_bytes_per_s(self.crossings).items():
            link = self.problem.link_by_tiers.get(tiers)
            limit = self.problem.usable_bytes_per_s(link) if link is not None else None
            sites = self.problem.sites_of(tiers[0])
            one = carries / sites
            if limit is not None and one > limit * (1 + LIMIT_TOLERANCE):
                link_of = "the link" if sites == 1 else f"each of the {sites:,} links"
                yield (
                    f"bandwidth: {link_of} {tiers[0]} -> {tiers[1]} would carry {one * 8e-6:.3f} Mbit/s, "
                    f"{(one / limit - 1) * 100:.1f} % more than its {limit * 8e-6:.3f} Mbit/s"
                )

    def losses(self) -> Iterator[str]:
        """What the plan may lose by its targets, and does not bear."""
        if self.unknown or _has_gaps(self.open_problem, self.plan):
            return
        after = RoutesAfterLoss(self.open_problem, self.plan)
        wrong = [one.lost for one in self.plan.fallbacks if not _is_share_of_each(after, one)]
        if wrong:
            yield f"the fallback for {wrong[0]} does not state a share for each route, or more than all requests"
            return
        for lost, reason in losses_that_break(self.open_problem, self.plan, LIMIT_TOLERANCE):
            yield f"survive: without {lost}, {reason}"

    def cost_by_operator(self) -> Mapping[str, Cost]:
        compute = dict.fromkeys(self.problem.operator_by_name, 0.0)
        for worker in self.plan.workers:
            hosted = [name for name in self.hosted.get(worker.name, ()) if name in compute]
            total = self.loads[worker.name]
            for name in hosted:
                part = self.shares.get((name, worker.name), 0.0) / total if total > 0 else 1 / len(hosted)
                compute[name] += worker.price_usd_per_h * self._sites(worker.name) * part
        network = dict.fromkeys(compute, 0.0)
        for crossing in self.crossings:
            network[crossing.downstream] += crossing.cost_usd_per_h
        return {name: Cost(compute[name], network[name]) for name in compute}


def carried_bytes_per_s(crossings: Iterable[Crossing]) -> Mapping[tuple[str, str], float]:
    """(upstream tier, downstream tier) -> bytes per second, summed over the links of all sites."""
    carried: dict[tuple[str, str], float] = {}
    for crossing in crossings:
        tiers = crossing.upstream_tier, crossing.downstream_tier
        carried[tiers] = carried.get(tiers, 0.0) + crossing.bytes_per_s
    return carried


def unknown_choices(problem: Problem, plan: Plan) -> Iterator[str]:
    """Sentences on operators and variants that the problem has and the plan lacks, or the reverse."""
    planned = plan.operator_by_name
    for operator in problem.operators:
        if operator.name not in planned:
            yield f"the plan has no operator {operator.name}"
            continue
        known = {variant.name for variant in operator.variants}
        for one in planned[operator.name].variants:
            if one.variant not in known:
                yield f"operator {operator.name} has no variant {one.variant}"
    for name in planned:
        if name not in problem.operator_by_name:
            yield f"the problem has no operator {name}"
    for worker in plan.workers:
        for name, variant in worker.variants.items():
            if name in planned and variant not in {one.variant for one in planned[name].variants}:
                yield f"{worker.name} runs {name} with variant {variant}, which the plan does not describe"


def _is_share_of_each(after: RoutesAfterLoss, fallback: Fallback) -> bool:
    """True if a fallback states a share for each route, or none; those of a workflow are at most all its requests."""
    weights = fallback.weights
    if not weights:
        return True
    if len(weights) != len(after.workflow) or min(weights) < 0:
        return False
    return max(after.shares(weights).values()) <= 1.0 + LIMIT_TOLERANCE


def _has_gaps(problem: Problem, plan: Plan) -> bool:
    """True if a route leaves out an operator or names no worker of the plan, so that its selection is unknown.

    Where a plan mixes variants a route is of one workflow.
    """
    operators: dict[str, list[str]] = {}  # workflow -> its operators
    for name in plan.operator_by_name:
        operators.setdefault(problem.workflow_of(name), []).append(name)
    for route in plan.routes:
        covered = {problem.workflow_of(name) for name in route.workers}
        needed = [name for workflow in covered for name in operators.get(workflow, ())]
        if not covered or (len(covered) > 1 and plan.mixes):
            return True
        if any(route.workers.get(name) not in plan.worker_by_name for name in needed):
            return True
    return False


def _by_workflow(
    problem: Problem,
    accuracies: Mapping[str, float | None],
    by_operator: Mapping[str, Cost],
    audits: Mapping[str, PlannedAudit],
) -> Iterator[PlannedWorkflow]:
    costs: dict[str, list[Cost]] = {}
    for name, cost in by_operator.items():
        costs.setdefault(problem.workflow_of(name), []).append(cost)
    for workflow in problem.workflows:
        own = costs.get(workflow.name, [])
        cost = Cost(sum(c.compute_usd_per_h for c in own), sum(c.network_usd_per_h for c in own))
        name, worth = workflow.name, workflow.worth_usd_per_h
        audit = audits.get(name)
        yield PlannedWorkflow(name, workflow.slo, accuracies.get(name), cost, worth, workflow.owner, audit)


def _over_budget(problem: Problem, cost: Cost) -> Iterator[str]:
    budget = problem.slo.budget_usd_per_h
    if budget is not None and cost.total_usd_per_h > budget * (1 + LIMIT_TOLERANCE):
        costs, allowed = distinct_usd(cost.total_usd_per_h, budget)
        excess = usd_text(cost.total_usd_per_h - budget)
        yield f"budget: {costs} USD/h is {excess} USD/h more than the {allowed} USD/h allowed"


def _over_limits(problem: Problem, uses: Mapping[str, float]) -> Iterator[str]:
    for name, most in problem.most.items():
        amount = uses.get(name, 0.0)
        if amount > most * (1 + LIMIT_TOLERANCE):
            asked, excess = amount_text(name, amount), amount_text(name, amount - most)
            yield f"{name}: {asked} is {excess} more than the {amount_text(name, most)} allowed"
