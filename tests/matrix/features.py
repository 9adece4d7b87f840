"""Features of a project, each a function on a draft, so that any set of them composes.

Features are put in by the order of `FEATURES`: what changes the number of workflows and the graph first.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator

from tests.matrix import draft as drafts
from tests.matrix.draft import KIB, Cascade, Cut, Draft, Input, Operator, Site, Source, Workflow

Feature = Callable[[Draft], None]


def some(draft: Draft) -> Iterator[Workflow]:
    """The workflow; of several one at random, or all."""
    if draft.is_several and draft.rng.random() < 0.5:
        yield draft.rng.choice(draft.workflows)
    else:
        yield from draft.workflows


def several_workflows(draft: Draft) -> None:
    if not draft.is_several:
        draft.workflows.append(drafts.workflow(draft, "two"))
        for pool in draft.pools:
            pool.count += 1


def alike_sites(draft: Draft) -> None:
    draft.sites["edge"] = draft.rng.randint(2, 3)


def unlike_sites(draft: Draft) -> None:
    rng = draft.rng
    for name in ("rome", "oslo", "bonn")[: rng.randint(2, 3)]:
        rate = rng.choice((None, round(rng.uniform(2, 20), 1)))
        accuracy = rng.choice((None, None, round(rng.uniform(40, 70), 1)))
        draft.rows.append(Site(name, rate, rng.choice((None, 0, 1, 3)), accuracy=accuracy))


def fan_out(draft: Draft) -> None:
    """A fan-out whose ratio depends on the variant."""
    for workflow in some(draft):
        _fan_out(draft, workflow, by_variant=True)


def _fan_out(draft: Draft, workflow: Workflow, *, by_variant: bool) -> None:
    rng, first = draft.rng, workflow.operators[0]
    if any(operator.depth for operator in workflow.operators):
        return
    ratios = {variant.name: round(rng.uniform(0.4, 2.0), 1) for variant in first.variants}
    ratio: float | dict[str, float] = ratios if by_variant else rng.choice((0.5, 2.0, 3.0))
    if len(workflow.operators) < 2:
        workflow.operators.append(Operator("classify", Input(first.name), drafts.variants(rng, 1, draft.pools)))
    for operator in workflow.operators[1:]:
        operator.depth = 1
    workflow.operators[1].input.ratio = ratio


def gather(draft: Draft) -> None:
    for workflow in some(draft):
        _fan_out(draft, workflow, by_variant=False)
        last = workflow.operators[-1]
        own = drafts.variants(draft.rng, 1, draft.pools)
        workflow.operators.append(Operator("combine", Input(last.name, gather=True), own))


def independent_streams(draft: Draft) -> None:
    for workflow in some(draft):
        rate = round(draft.rng.uniform(1, 12), 1)
        workflow.sources.append(Source("speech", "edge", rate, round(draft.rng.uniform(5, 60)) * KIB))
        workflow.operators.append(Operator("listen", Input("speech"), drafts.variants(draft.rng, 1, draft.pools)))


def _plain_operator(draft: Draft, workflow: Workflow, *, more_variants: int = 1, inside: bool = True) -> Operator:
    """An operator that no other feature has changed, with so many variants; a new one if there is none.

    `inside`: it may be below a fan-out.
    """
    fans = {operator.input.upstream for operator in workflow.operators if operator.input.ratio is not None}
    fitting = [
        operator
        for operator in workflow.operators
        if operator.is_plain
        and operator.name not in fans
        and not operator.input.gather
        and len(operator.variants) >= more_variants
        and (inside or not operator.depth)
    ]
    if fitting:
        return draft.rng.choice(fitting)
    own = drafts.variants(draft.rng, more_variants, draft.pools)
    before = workflow.operators[-1]
    if before.depth and not inside:
        upstream, depth = workflow.sources[0].name, 0
        before = workflow.operators[0]
        if before.input.upstream == upstream:  # in front of it, so that there is one answer
            name = f"prepare{len(workflow.operators)}"
            before.input = Input(name, stays_in=before.input.stays_in)
            workflow.operators.insert(0, Operator(name, Input(upstream), own))
            return workflow.operators[0]
    else:
        upstream, depth = before.name, before.depth
    workflow.operators.append(Operator(f"further{len(workflow.operators)}", Input(upstream), own, depth))
    return workflow.operators[-1]


def state(draft: Draft) -> None:
    for workflow in some(draft):
        _plain_operator(draft, workflow, inside=False).has_state = True
        for source in workflow.sources:
            source.streams = draft.rng.randint(8, 20)
        streams = workflow.sources[0].streams
        for source in workflow.sources:
            source.streams = streams


def cascade(draft: Draft) -> None:
    rng = draft.rng
    for workflow in some(draft):
        operator = _plain_operator(draft, workflow, more_variants=2)
        first, then = operator.variants[:2]
        step = {pool.name: round(rng.uniform(0.0002, 0.002), 5) for pool in draft.pools}
        accuracy = round(max(first.accuracy, then.accuracy) - rng.uniform(-1, 3), 1)
        if rng.random() < 0.6:  # a target that the first variant alone may miss
            best = [
                max(one.accuracy for one in other.variants) for other in workflow.operators if other is not operator
            ]
            workflow.accuracy = round(math.prod((accuracy - 0.5, *(one / 100.0 for one in best))), 1)
        operator.cascade = Cascade(first.name, then.name, rng.choice((0.1, 0.25, 0.5)), step, accuracy)


def cut(draft: Draft) -> None:
    rng = draft.rng
    for workflow in some(draft):
        operator = _plain_operator(draft, workflow)
        for variant in operator.variants:
            share = rng.uniform(0.1, 0.6)
            head, tail = (
                {pool: {1: round(part * t[1], 5)} for pool, t in variant.times.items()}
                for part in (share, 1.02 - share)
            )
            variant.cut = Cut(round(rng.uniform(1, 20)) * KIB, head, tail)


def mixture(draft: Draft) -> None:
    for workflow in some(draft):
        _mix(draft, workflow)


def _mix(draft: Draft, workflow: Workflow) -> None:
    workflow.mean_accuracy = round(draft.rng.uniform(50, 85), 1)
    if workflow.accuracy is not None:
        workflow.accuracy = round(workflow.accuracy - 25, 1)


def soft_mean(draft: Draft) -> None:
    for workflow in some(draft):
        if workflow.mean_accuracy is None:
            _mix(draft, workflow)
        workflow.penalty_usd_per_h = draft.rng.choice((0.005, 0.02, 0.1))


def audits(draft: Draft) -> None:
    for workflow in some(draft):
        workflow.audit = draft.rng.choice((0.02, 0.1, 0.5))


def _survive(loss: str) -> Feature:
    def put(draft: Draft) -> None:
        for workflow in some(draft):
            workflow.survive.append(loss)

    return put


def margins(draft: Draft) -> None:
    for workflow in some(draft):
        workflow.margin = draft.rng.choice((0.0, 0.2, 0.5)), draft.rng.choice((0.1, 0.5))


def hard_p99(draft: Draft) -> None:
    for workflow in some(draft):
        workflow.latency_p99_s = draft.rng.choice((0.2, 0.4, 0.8, 2.0))


def soft_p99(draft: Draft) -> None:
    for workflow in some(draft):
        workflow.latency_p99_s = draft.rng.choice((0.1, 0.2, 0.4))
        workflow.latency_penalty_usd_per_h_s = draft.rng.choice((0.1, 1.0))


def worth(draft: Draft) -> None:
    _admit(draft, lambda rng: 0)


def priorities(draft: Draft) -> None:
    _admit(draft, lambda rng: rng.randint(0, 1))


def _admit(draft: Draft, priority: Callable[[random.Random], int]) -> None:
    """Who may be left out: one of several workflows or unlike sites, since one alone is always served."""
    if not draft.rows:
        several_workflows(draft)
    for one in (*draft.rows, *draft.workflows[1:]) if draft.rows else draft.workflows:
        one.worth_usd_per_h = round(draft.rng.choice((0.1, 0.5, 2.0)) * draft.rng.uniform(0.5, 1.5), 3)
        one.priority = priority(draft.rng)


def budget(draft: Draft) -> None:
    draft.budget_usd_per_h = round(draft.rng.uniform(0.3, 2.5), 2)


def shared_memory(draft: Draft) -> None:
    for pool in draft.pools:
        pool.memory_bytes = 1000.0 * KIB
    for workflow in draft.workflows:
        for operator in workflow.operators:
            for variant in operator.variants:
                variant.memory_bytes = {pool.name: draft.rng.choice((200, 450, 600, 900)) * KIB for pool in draft.pools}


def exclusive(draft: Draft) -> None:
    draft.rng.choice(draft.pools).is_exclusive = True


def batches(draft: Draft) -> None:
    for workflow in draft.workflows:
        for operator in workflow.operators:
            for variant in operator.variants:
                cuts = () if variant.cut is None else (variant.cut.head, variant.cut.tail)
                saving = draft.rng.uniform(0.4, 0.99)
                for table in (variant.times, *cuts):
                    for pool in table:
                        table[pool] = {1: table[pool][1], 4: round(4 * saving * table[pool][1], 5)}


def bandwidth(draft: Draft) -> None:
    for link in draft.links:
        link.bandwidth_bit_per_s = round(draft.rng.uniform(1, 30), 1) * 1e6
    for row in draft.rows:
        row.bandwidth_bit_per_s = draft.rng.choice((None, 4e6, 40e6))


def residency(draft: Draft) -> None:
    for workflow in some(draft):
        if draft.rng.random() < 0.5:
            workflow.sources[0].stays_in = ("edge",)
        else:
            draft.rng.choice(workflow.operators).tiers = (draft.rng.choice(draft.tiers),)


def eventually(draft: Draft) -> None:
    for workflow in some(draft):
        for source in workflow.sources:
            source.is_eventual = True


def _objective(name: str) -> Feature:
    def put(draft: Draft) -> None:
        for workflow in draft.workflows:
            workflow.objective = name

    return put


def _with_power(draft: Draft) -> None:
    if draft.pools[0].power_w is not None:
        return
    for pool in draft.pools:
        pool.power_w, pool.carbon_g_per_kwh = round(draft.rng.uniform(5, 300)), round(draft.rng.uniform(20, 600))
    for link in draft.links:
        link.energy_wh_per_gib = draft.rng.choice((0.0, 1.0, 20.0))
        link.carbon_g_per_kwh = round(draft.rng.uniform(20, 600))


def _least(name: str) -> Feature:
    def put(draft: Draft) -> None:
        _with_power(draft)
        _objective(name)(draft)

    return put


def energy_limit(draft: Draft) -> None:
    _with_power(draft)
    draft.limits["energy"] = round(draft.rng.uniform(50, 1200))


def carbon_price(draft: Draft) -> None:
    """A price of energy and of carbon, and a limit of carbon."""
    _with_power(draft)
    draft.energy_usd_per_kwh, draft.carbon_usd_per_t = draft.rng.choice((None, 0.3)), draft.rng.choice((90.0, 1000.0))
    draft.limits["carbon"] = round(draft.rng.uniform(30, 400))


FEATURES: dict[str, Feature] = {
    "several": several_workflows,
    "alike": alike_sites,
    "unlike": unlike_sites,
    "fan-out": fan_out,
    "gather": gather,
    "streams": independent_streams,
    "state": state,
    "cascade": cascade,
    "cut": cut,
    "mixture": mixture,
    "soft mean": soft_mean,
    "audits": audits,
    "lose worker": _survive("1 worker"),
    "lose link": _survive("1 link"),
    "lose site": _survive("1 site"),
    "margins": margins,
    "hard p99": hard_p99,
    "soft p99": soft_p99,
    "worth": worth,
    "priorities": priorities,
    "budget": budget,
    "memory": shared_memory,
    "exclusive": exclusive,
    "batches": batches,
    "bandwidth": bandwidth,
    "residency": residency,
    "eventually": eventually,
    "max accuracy": _objective("mean_accuracy"),
    "max rate": _objective("rate"),
    "min latency": _objective("latency"),
    "min energy": _least("energy"),
    "min carbon": _least("carbon"),
    "energy limit": energy_limit,
    "carbon price": carbon_price,
}
OBJECTIVES = ("max accuracy", "max rate", "min latency", "min energy", "min carbon")

# No project can have both: they are two values of one key.
EITHER = (
    frozenset({"alike", "unlike"}),
    frozenset({"hard p99", "soft p99"}),
    *map(frozenset, itertools.combinations(OBJECTIVES, 2)),
)


def can_compose(features: Iterable[str]) -> bool:
    """False if two of the features are values of one key."""
    chosen = set(features)
    return not any(pair <= chosen for pair in EITHER)


def drafted(features: Iterable[str], seed: int | str) -> Draft:
    """A random project with these features."""
    chosen = set(features)
    found = drafts.base(random.Random(f"{seed}"))
    found.features = [name for name in FEATURES if name in chosen]
    for name in found.features:
        FEATURES[name](found)
    return found
