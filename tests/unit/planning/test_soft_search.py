"""The plan of least cost and penalties on made-up sets of plans, of one workflow and of several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean.planning.deadline.soft_search import Candidate, NoPlan, SoftOutcome, SoftSearch, SoftTarget, Targets

Plans = Sequence[tuple[float, Mapping[str, float]]]  # USD per hour, and p99 latencies by workflow

STEPS = [(1.0, 0.5), (1.5, 0.4), (2.0, 0.32), (4.0, 0.25)]  # USD per hour and p99 latency of each plan there is


def of_one(steps: Sequence[tuple[float, float]]) -> Plans:
    return [(cost, {"": p99_s}) for cost, p99_s in steps]


@dataclass
class Planner:
    """Finds the cheapest plan for targets; each bound is a part `proven` of the cost.

    `shows_fastest`: where no plan meets the targets, the search for one has seen the fastest.
    """

    plans: Plans
    proven: float = 1.0
    shows_fastest: bool = True
    search: SoftSearch[float] | None = None
    asked: list[Targets] = field(default_factory=list)

    def __call__(self, targets_s: Targets) -> Candidate[float] | NoPlan:
        self.asked.append(targets_s)
        in_time = [
            (cost, p99_s)
            for cost, p99_s in self.plans
            if all(p99_s[name] <= target_s for name, target_s in targets_s.items())
        ]
        if not in_time:
            if self.shows_fastest and self.search is not None:
                self.search.offer(self.candidate(*min(self.plans, key=lambda one: max(one[1].values()))))
            return NoPlan()
        return self.candidate(*min(in_time, key=lambda one: one[0]))

    def candidate(self, cost: float, p99_s: Mapping[str, float]) -> Candidate[float]:
        return Candidate(cost, self.proven * cost, p99_s, cost)

    def searching(self, targets: Mapping[str, SoftTarget], **options: object) -> SoftSearch[float]:
        cheapest = self({})
        assert isinstance(cheapest, Candidate)
        self.asked.clear()
        self.search = SoftSearch(targets, cheapest, self, **options)  # type: ignore[arg-type]
        return self.search


def run(target: SoftTarget, steps: Sequence[tuple[float, float]] = STEPS, **options: object) -> SoftOutcome[float]:
    exactly = {"tolerance": 1e-9, "most": 60, "precision": 1e-4}
    return Planner(of_one(steps)).searching({"": target}, **(exactly | options)).run()


@pytest.mark.parametrize(
    ("usd_per_h_per_s", "cost"), [(0.1, 1.0), (4.9, 1.0), (5.1, 1.5), (6.2, 1.5), (6.3, 2.0), (28.0, 2.0), (29.0, 4.0)]
)
def test_time_is_bought_while_it_is_worth_its_price(usd_per_h_per_s: float, cost: float) -> None:
    target = SoftTarget(0.25, usd_per_h_per_s)
    found = run(target)
    assert found.best.planned == cost
    value = cost + target.penalty(found.best.p99_s[""])
    assert found.bound_usd_per_h == pytest.approx(value, rel=1e-3)
    assert found.bound_usd_per_h <= value


def test_a_cheapest_plan_that_meets_the_target_needs_no_other() -> None:
    found = run(SoftTarget(0.6, 1.0))
    assert (found.best.planned, found.bound_usd_per_h, found.tried) == (1.0, 1.0, ())


def test_a_small_penalty_needs_no_other_plan_either() -> None:
    found = run(SoftTarget(0.3, 0.01), tolerance=0.005)
    assert (found.best.planned, found.bound_usd_per_h, found.tried) == (1.0, 1.0, ())


def test_the_soft_target_itself_is_tried() -> None:
    found = run(SoftTarget(0.33, 100.0))
    assert {"": 0.33} in found.tried
    assert (found.best.planned, found.bound_usd_per_h) == (2.0, pytest.approx(2.0))


def test_a_target_that_no_plan_meets_leads_to_the_nearest_one() -> None:
    found = run(SoftTarget(0.1, 1000.0))
    tried = [one[""] for one in found.tried]
    assert found.best.planned == 4.0
    assert tried[:2] == [0.1, 0.25] and min(tried[2:]) > 0.1
    assert found.bound_usd_per_h == 4.0  # for that there is none is not proven


def test_ranges_that_are_as_narrow_as_noise_are_not_divided() -> None:
    assert len(run(SoftTarget(0.1, 1000.0), precision=0.5).tried) <= 4


def test_what_is_proven_to_have_no_plan_raises_the_bound() -> None:
    def plan(targets_s: Targets) -> Candidate[float] | NoPlan:
        found = Planner(of_one(STEPS))(targets_s)
        return NoPlan(math.inf) if isinstance(found, NoPlan) else found

    cheapest = plan({})
    assert isinstance(cheapest, Candidate)
    found = SoftSearch({"": SoftTarget(0.1, 1000.0)}, cheapest, plan, tolerance=1e-9, most=60, precision=0.0).run()
    assert found.best.planned == 4.0 and found.bound_usd_per_h > 100.0


def test_what_is_proven_to_be_too_fast_is_left_out() -> None:
    found = run(SoftTarget(0.1, 1000.0), least_s={"": 0.25})
    assert found.best.planned == 4.0
    assert min(one[""] for one in found.tried) > 0.25 - 1e-9
    assert found.bound_usd_per_h >= 1.0 + 150.0


@pytest.mark.parametrize("least_s", [0.3, 0.45, 0.9])
def test_a_plan_below_what_was_proven_refutes_it(least_s: float) -> None:
    found = run(SoftTarget(0.1, 30.0), least_s={"": least_s})
    least = min(cost + 30.0 * (p99_s - 0.1) for cost, p99_s in STEPS if p99_s == 0.5 or least_s < 0.45)
    assert found.bound_usd_per_h <= min(least, found.best.cost_usd_per_h + 30.0 * (found.best.p99_s[""] - 0.1))


def test_the_number_of_targets_is_limited() -> None:
    planner = Planner(of_one([(1.0 + number, 1.0 - number / 100) for number in range(90)]), proven=0.5)
    assert len(planner.searching({"": SoftTarget(0.1, 99.0)}, most=4).run().tried) == 4


def test_what_was_found_before_time_ended_stands() -> None:
    planner = Planner(of_one(STEPS))

    def plan(targets_s: Targets) -> Candidate[float] | NoPlan:
        found = planner(targets_s)
        return found if len(planner.asked) < 3 else NoPlan(out_of_time=True)

    search = SoftSearch(
        {"": SoftTarget(0.25, 20.0)}, Candidate(1.0, 1.0, {"": 0.5}, 1.0), plan, tolerance=0.0, precision=0.0
    )
    found = search.run()
    assert found.out_of_time and len(planner.asked) == 3
    assert found.best.planned in {1.5, 2.0, 4.0}
    assert found.bound_usd_per_h <= 2.0 + 20.0 * 0.07


def test_one_workflow_is_sped_up_at_the_expense_of_another() -> None:
    """The dearer plan has the slow one's workers, and the other workflow is late for it."""
    plans: Plans = [(1.0, {"a": 0.5, "b": 0.2}), (1.2, {"a": 0.2, "b": 0.3}), (2.0, {"a": 0.2, "b": 0.2})]
    targets = {"a": SoftTarget(0.2, 4.0), "b": SoftTarget(0.2, 1.0)}
    found = Planner(plans).searching(targets, tolerance=1e-9, precision=1e-6).run()
    assert found.best.planned == 1.2
    assert found.bound_usd_per_h <= 1.3


def test_a_workflow_that_a_plan_leaves_out_counts_nothing() -> None:
    search = SoftSearch({"a": SoftTarget(0.1, 9.0)}, Candidate(3.0, 3.0, {}, 3.0), lambda targets_s: NoPlan())
    found = search.run()
    assert (found.bound_usd_per_h, search.value(found.best), found.tried) == (3.0, 3.0, ())


@st.composite
def random_plans(draw: st.DrawFn) -> Plans:
    names = draw(st.sampled_from([("",), ("a", "b"), ("a", "b", "c")]))
    latency = st.floats(0.05, 2.0)
    one = st.tuples(st.floats(0.1, 10.0), st.fixed_dictionaries(dict.fromkeys(names, latency)))
    return draw(st.lists(one, min_size=1, max_size=8))


@settings(max_examples=40, deadline=None)
@given(random_plans(), st.data(), st.sampled_from([1.0, 0.9, 0.0]), st.booleans())
def test_no_plan_is_below_the_bound(plans: Plans, data: st.DataObject, proven: float, shows_fastest: bool) -> None:
    """And with proven costs the value is the least one, to the tolerance."""
    soft = st.builds(SoftTarget, st.floats(0.01, 2.5), st.floats(1e-3, 100.0))
    targets = {name: data.draw(soft) for name in plans[0][1]}
    search = Planner(plans, proven, shows_fastest).searching(targets, most=400, precision=1e-6)
    found = search.run()
    values = [cost + sum(targets[name].penalty(own) for name, own in p99_s.items()) for cost, p99_s in plans]
    assert found.bound_usd_per_h <= min(values) * (1 + 1e-9)
    assert search.value(found.best) >= min(values) * (1 - 1e-9)
    if proven == 1.0 and search.tried < search.most:
        assert search.value(found.best) <= min(values) / (1.0 - 0.006)
