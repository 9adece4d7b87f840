"""The only scorer: a plan's cost and feasibility, recomputed from its routes and workers alone.

The objective of the assignment, the report, the baselines and the tests are compared with its result. Costs, rates and
loads that are written in the plan are ignored and recomputed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from jellybean_solver.errors import SolverError
from jellybean_solver.figures import distinct_sizes, distinct_usd, listed, rate_text, size_text, usd_text
from jellybean_solver.model.flows import Flow, flows, link_uses
from jellybean_solver.model.forms import as_planned
from jellybean_solver.model.left_out import served, wrongly_left_out
from jellybean_solver.model.loss import RoutesAfterLoss
from jellybean_solver.model.loss_checks import losses_that_break
from jellybean_solver.model.plan import Cost, Fallback, Plan, PlannedOperator, PlannedWorker, PlannedWorkflow
from jellybean_solver.model.planned_audits import planned_audits
from jellybean_solver.model.problem import Problem, Sharing
from jellybean_solver.model.reached_accuracy import accuracy_violations, mean, reached
from jellybean_solver.model.resources import amount_text, used
from jellybean_solver.model.selection_shares import shares_of_selections
from jellybean_solver.model.spreading import spread_complaints
from jellybean_solver.model.stated_figures import with_figures
from jellybean_solver.model.targets import LIMIT_TOLERANCE


@dataclass(frozen=True)
class Evaluation:
    """Result of `evaluate`. `violations` and `breaches` are sentences for the user; both empty for a feasible plan.

    `plan`: with the problem's figures, and the cost, uses and accuracies that follow; if its choices or routes are not
    those of the problem, it is the plan as it was, and all else is empty but the violations.
    """

    plan: Plan
    flows: tuple[Flow, ...]
    by_operator: Mapping[str, Cost]  # compute by share of its workers' load, network by the edges into it
    violations: tuple[str, ...]  # the plan contradicts the problem: rates, capacity, memory, tiers, links, accuracy
    breaches: tuple[str, ...]  # limits that a consistent plan may break: the budget, those of resources

    @property
    def cost(self) -> Cost:
        return self.plan.cost

    @property
    def accuracy(self) -> float | None:
        """That of the only workflow; None if there are several."""
        return self.plan.accuracy

    @property
    def workflows(self) -> tuple[PlannedWorkflow, ...]:
        """Filled if there are several."""
        return self.plan.workflows

    @property
    def loads(self) -> Mapping[str, float]:
        """Worker -> busy fraction."""
        return {worker.name: worker.load for worker in self.plan.workers}

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
        own = self.plan
        return replace(plan, cost=own.cost, accuracy=own.accuracy, workflows=own.workflows, uses=own.uses)


def evaluate(problem: Problem, plan: Plan) -> Evaluation:
    """Score `plan` as an answer to `problem`, with the fan-out ratios of the plan's variants.

    If the plan mixes variants, its accuracy is the mean over all requests. Workflows that it leaves out are not looked
    at, but that they may be left out is.
    """
    forgone = tuple(wrongly_left_out(problem, plan))
    problem = as_planned(served(problem, plan), plan)
    wrong = tuple(misfits(problem, plan))
    routes = (*_wrong_weights(problem, plan), *_idle_workers(plan), *_wrong_sites(problem, plan), *forgone)
    if wrong:
        return Evaluation(plan, (), {}, (*wrong, *routes), ())
    scorer = _Scorer(problem, plan)
    violations = (
        *routes,
        *scorer.wrong_rates(),
        *scorer.wrong_workers(),
        *scorer.wrong_tiers(),
        *scorer.over_memory(),
        *scorer.over_bandwidth(),
        *accuracy_violations(problem, scorer.selections),
        *scorer.losses(),
        *spread_complaints(plan),
    )
    return scorer.evaluation(violations)


class _Scorer:
    """`plan`: as it is; `stated`: with the problem's figures, from which cost and `flows` follow."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan = problem, plan
        self.stated = with_figures(problem, plan)
        self.flows = flows(self.stated)
        self.links = link_uses(self.stated, self.flows)
        self.selections = shares_of_selections(plan)

    def evaluation(self, violations: tuple[str, ...]) -> Evaluation:
        problem, by_operator = self.problem, self.cost_by_operator()
        accuracies = {name: mean(known) for name, known in reached(problem, self.selections).items()}
        audits = planned_audits(problem, self.plan, self.selections)
        cost = Cost(
            sum(worker.price_usd_per_h * problem.sites_of(worker.tier) for worker in self.stated.workers),
            sum(flow.cost_usd_per_h for flow in self.flows),
        )
        cost_of: dict[str, Cost] = {}
        for name, own in by_operator.items():
            workflow = problem.workflow_of(name)
            cost_of[workflow] = cost_of.get(workflow, Cost()) + own
        uses = used(problem, self.stated.workers, {use.tiers: use.bytes_per_s for use in self.links})
        workflows = tuple(
            PlannedWorkflow(
                one.name,
                one.slo,
                accuracies[one.name],
                cost_of.get(one.name, Cost()),
                one.worth_usd_per_h,
                one.owner,
                audits.get(one.name),
            )
            for one in problem.workflows
        )
        accuracy = accuracies.get("")
        plan = replace(self.stated, cost=cost, accuracy=accuracy, workflows=workflows, uses=uses)
        breaches = (*_over_budget(problem, cost), *_over_limits(problem, uses))
        return Evaluation(plan, self.flows, by_operator, violations, breaches)

    def runs(self, worker: PlannedWorker) -> list[PlannedOperator]:
        """The operators that run on a worker in some route, each with its variant."""
        return [self.stated.operator_at(name, worker.name) for name in worker.rates_per_s]

    def wrong_rates(self) -> Iterator[str]:
        for worker, planned in zip(self.stated.workers, self.plan.workers, strict=True):
            for name, rate in worker.rates_per_s.items():
                stated = planned.rates_per_s.get(name, 0.0)
                if abs(stated - rate) > LIMIT_TOLERANCE * max(rate, stated):
                    yield f"{worker.name} states {rate_text(stated)} of {name}, but the routes bring {rate_text(rate)}"
            for name in planned.rates_per_s:
                if name not in worker.rates_per_s:
                    yield f"{worker.name} states a rate of {name}, but no route brings any"

    def wrong_workers(self) -> Iterator[str]:
        for worker in self.plan.workers:
            pool = self.problem.pool_by_name.get(worker.pool)
            if pool is None:
                yield f"{worker.name} is of pool {worker.pool}, which does not exist"
            elif (worker.tier, worker.price_usd_per_h) != (pool.tier, pool.price_usd_per_h):
                yield f"{worker.name} states another tier or price than its pool {pool.name}"
        for worker in self.stated.workers:
            if worker.pool in self.problem.pool_by_name:
                yield from self._overloaded(worker)
        for name, count in Counter(worker.pool for worker in self.plan.workers).items():
            pool = self.problem.pool_by_name.get(name)
            if pool is not None and count > pool.count:
                yield f"the plan uses {count} workers of pool {name}, which has {pool.count}"
        if len(self.plan.worker_by_name) < len(self.plan.workers):
            yield "two workers have the same name"

    def _overloaded(self, worker: PlannedWorker) -> Iterator[str]:
        if worker.sharing is Sharing.EXCLUSIVE and len(worker.rates_per_s) > 1:
            yield f"{worker.name} is exclusive but serves {', '.join(worker.rates_per_s)}"
        for operator in self.runs(worker):
            name, size = operator.name, operator.batch.get(worker.pool, 0)
            variant = self.problem.operator_by_name[name].variant(operator.variant)
            if size not in variant.service.get(worker.pool, {}):
                at = f"batch size {size}" if size else "any batch size"
                yield f"{worker.name} cannot run {name} with variant {variant.name}: no profile at {at}"
            elif size > 1 and name in self.problem.unbatched and not variant.counts_rows:
                yield f"{worker.name} runs {name} in batches, but it gathers or fans out"
        if worker.load > self.problem.utilisation * (1 + LIMIT_TOLERANCE):
            cap = self.problem.utilisation
            yield f"{worker.name} would be busy {worker.load:.4f} of the time, above the cap of {cap:g}"

    def wrong_tiers(self) -> Iterator[str]:
        known = self.problem.tier_index  # `wrong_workers` names a worker in any other tier
        strange = dict.fromkeys(
            (flow.upstream, flow.downstream, *flow.tiers)
            for flow in self.flows
            if known.keys() >= set(flow.tiers) and not self.problem.can_flow(*flow.tiers)
        )
        for upstream, downstream, lower, upper in strange:
            yield (
                f"{upstream} -> {downstream} would flow from tier {lower} to {upper}, "
                "for which there is no link up the tiers"
            )
        for worker in self.stated.workers:
            for name, rate in worker.rates_per_s.items():
                allowed = self.problem.operator_by_name[name].tiers
                if allowed is not None and worker.tier not in allowed:
                    yield (
                        f"{name} would run in tier {worker.tier} at {rate_text(rate, 4)}, "
                        f"but may run in {', '.join(allowed)} only"
                    )
        for edge in self.problem.edges:
            if edge.tiers is not None:
                own = [one for one in self.flows if (one.upstream, one.downstream) == (edge.upstream, edge.downstream)]
                for tier in dict.fromkeys(tier for one in own for tier in one.tiers if tier not in edge.tiers):
                    yield (
                        f"{edge.upstream} -> {edge.downstream} would have its data in tier {tier}, "
                        f"but may be in {', '.join(edge.tiers)} only"
                    )

    def over_memory(self) -> Iterator[str]:
        for worker in self.stated.workers:
            runs = self.runs(worker)
            for which, limit, tables in (
                ("memory", worker.memory_bytes, [one.memory_bytes for one in runs]),
                ("device memory", worker.device_memory_bytes, [one.device_memory_bytes for one in runs]),
            ):
                needed = sum(table.get(worker.pool, 0.0) for table in tables)
                if limit is not None and needed > limit * (1 + LIMIT_TOLERANCE):
                    held, allowed = distinct_sizes(needed, limit)
                    yield (
                        f"{which}: {worker.name} would hold {', '.join(worker.rates_per_s)} in {held}, "
                        f"{size_text(needed - limit)} more than its {allowed}"
                    )

    def over_bandwidth(self) -> Iterator[str]:
        for use in self.links:
            limit = self.problem.usable_bytes_per_s(self.problem.link_by_tiers[use.tiers])
            one = use.bytes_per_s / use.sites
            if limit is not None and one > limit * (1 + LIMIT_TOLERANCE):
                link_of = "the link" if use.sites == 1 else f"each of the {use.sites:,} links"
                yield (
                    f"bandwidth: {link_of} {use.upstream_tier} -> {use.downstream_tier} would carry "
                    f"{one * 8e-6:.3f} Mbit/s, {(one / limit - 1) * 100:.1f} % more than its {limit * 8e-6:.3f} Mbit/s"
                )

    def losses(self) -> Iterator[str]:
        """What the plan may lose by its targets, and does not bear."""
        if not self.problem.survives and not self.plan.fallbacks:
            return
        after = RoutesAfterLoss(self.problem, self.plan)
        wrong = [one.lost for one in self.plan.fallbacks if not _is_share_of_each(after, one)]
        if wrong:
            yield f"the fallback for {wrong[0]} does not state a share for each route, or more than all requests"
            return
        for lost, reason in losses_that_break(self.problem, self.stated, LIMIT_TOLERANCE):
            yield f"survive: without {lost}, {reason}"

    def cost_by_operator(self) -> Mapping[str, Cost]:
        compute = dict.fromkeys(self.problem.operator_by_name, 0.0)
        for worker in self.stated.workers:
            usd_per_h = worker.price_usd_per_h * self.problem.sites_of(worker.tier)
            for operator in self.runs(worker):
                busy = worker.rates_per_s[operator.name] * operator.request_s(worker.pool)
                part = busy / worker.load if worker.load > 0 else 1 / len(worker.rates_per_s)
                compute[operator.name] += usd_per_h * part
        network = dict.fromkeys(compute, 0.0)
        for flow in self.flows:
            network[flow.downstream] += flow.cost_usd_per_h
        return {name: Cost(compute[name], network[name]) for name in compute}


def misfits(problem: Problem, plan: Plan) -> Iterator[str]:
    """Sentences on what keeps a plan from having figures of a problem: unknown choices, and routes with gaps."""
    yield from _unknown_choices(problem, plan)
    yield from _gaps(problem, plan)


def _unknown_choices(problem: Problem, plan: Plan) -> Iterator[str]:
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


def _gaps(problem: Problem, plan: Plan) -> Iterator[str]:
    """Sentences on routes that leave out an operator of their workflows, or name no worker of the plan.

    Where a plan mixes variants a route is of one workflow.
    """
    operators: dict[str, list[str]] = {}  # workflow -> its operators
    for name in problem.operator_by_name:
        operators.setdefault(problem.workflow_of(name), []).append(name)
    for number, route in enumerate(plan.routes, 1):
        covered = {problem.workflow_of(name) for name in route.workers} if problem.workflows else {""}
        if len(covered) > 1 and plan.mixes:
            yield f"route {number} is of several workflows, but a plan that mixes variants has one on each"
        for workflow in sorted(covered):
            missing = [name for name in operators.get(workflow, ()) if name not in route.workers]
            yield from (f"route {number} leaves out operator {name}" for name in missing)
        for name, worker in route.workers.items():
            if worker not in plan.worker_by_name:
                yield f"route {number} sends {name} to {worker}, which is no worker of the plan"


def _wrong_weights(problem: Problem, plan: Plan) -> Iterator[str]:
    total = dict.fromkeys(problem.slo_by_workflow, 0.0)
    for number, route in enumerate(plan.routes, 1):
        if route.weight < 0:
            yield f"route {number} has weight {route.weight:.6g}, below 0"
        for workflow in {problem.workflow_of(name) for name in route.workers} & total.keys():
            total[workflow] += route.weight
    for workflow, weight in total.items():
        if abs(weight - 1.0) > LIMIT_TOLERANCE:
            of = f" of {workflow}" if workflow else ""
            yield f"the routes' weights{of} sum to {weight:.9g} instead of 1"


def _idle_workers(plan: Plan) -> Iterator[str]:
    serving = {worker for route in plan.routes for worker in route.workers.values()}
    yield from (f"{name} is paid for but serves nothing" for name in plan.worker_by_name if name not in serving)


def _wrong_sites(problem: Problem, plan: Plan) -> Iterator[str]:
    for tier in problem.tiers:
        stated, sites = plan.sites_of(tier), problem.sites_of(tier)
        if stated != sites:
            yield f"the plan is for {stated:,} sites of {tier}, of which there are {sites:,}"


def _is_share_of_each(after: RoutesAfterLoss, fallback: Fallback) -> bool:
    """True if a fallback states a share for each route, or none; those of a workflow are at most all its requests."""
    weights = fallback.weights
    if not weights:
        return True
    if len(weights) != len(after.workflow) or min(weights) < 0:
        return False
    return max(after.shares(weights).values()) <= 1.0 + LIMIT_TOLERANCE


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
