from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from jellybean_solver import (
    Edge,
    EndToEnd,
    Infeasibility,
    Link,
    Pool,
    Problem,
    Sharing,
    Slo,
    SolverError,
    baselines,
    missing_link_text,
    missing_links,
    solve,
)
from tests.support.small_problems import GIB, box, gpu, operator, problem, variant


def _why(case: Problem) -> Infeasibility:
    solution = solve(case)
    assert solution.status == "infeasible"
    assert solution.plan is None
    assert solution.infeasibility is not None
    return solution.infeasibility


def _variants(**kwargs: object) -> Problem:
    return problem(
        operator("a", ["camera"], variant("small", {"box": 0.05}), variant("big", {"box": 0.2})),
        pools=[box(count=1)],
        accuracy=EndToEnd(("a",), {("small",): 80.0, ("big",): 90.0}),
        **kwargs,  # type: ignore[arg-type]
    )


def test_a_variant_that_runs_nowhere() -> None:
    why = _why(problem(operator("a", ["camera"], variant("x", {"tpu": 0.01})), pools=[box()]))

    assert why.reasons == ("operator a cannot run anywhere: no worker pool has a profile of its variants (x)",)


def test_a_tier_that_cannot_be_reached() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"gpu": 0.01}, {"b": 0.0})),
        operator("b", ["a"], variant("y", {"box": 0.01})),
        pools=[box(), gpu()],
    )
    (reason,) = _why(case).reasons
    assert reason.startswith("operator b can only run in tier edge, where its inputs cannot flow (a in cloud)")
    (reason,) = _why(replace(case, links=())).reasons
    assert reason.startswith("operator b can only run in tier edge")  # a link to a would not help
    (first, _) = case.operators
    (reason,) = _why(replace(case, operators=(first,), links=())).reasons
    assert reason.startswith("operator a can only run in tier cloud, where its inputs cannot flow (camera in edge)")


def test_accuracy_out_of_reach() -> None:
    why = _why(_variants(rate_per_s=4.0, slo=Slo(accuracy=95.0)))

    assert why.reasons[0] == "accuracy: the target is 95, but the best selection reaches 90 (a big)"
    assert why.nearest_accuracy == 90.0
    assert why.nearest_rate_scale is None


def test_too_small_a_fleet_for_the_accuracy() -> None:
    why = _why(_variants(rate_per_s=10.0, slo=Slo(accuracy=90.0)))

    assert why.reasons[0].startswith("capacity: at most 0.5 of the rates fits (camera 5 of 10/s), with a big")
    assert "full pools: box (1 in edge)" in why.reasons
    assert why.nearest_accuracy == 80.0
    assert why.nearest_rate_scale == pytest.approx(0.5, rel=1e-5)
    assert why.nearest_rate_scale is not None
    assert why.nearest_rate_scale < 0.5


def test_the_pools_and_operators_that_run_short_are_named() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.2}, {"b": 0.0})),
        operator("b", ["a"], variant("y", {"gpu": 0.01})),
        pools=[box(), gpu()],
    )
    why = _why(case)

    assert "full pools: box (1 in edge)" in why.reasons
    assert "run short: a (can run in no other pool)" in why.reasons


def test_where_residency_leaves_an_operator_is_named() -> None:
    """The cloud has room, but the operator may not go there."""
    kept = replace(operator("a", ["camera"], variant("x", {"box": 0.2, "gpu": 0.01})), tiers=("edge",))
    why = _why(problem(kept, pools=[box(), gpu()]))
    assert "full pools: box (1 in edge)" in why.reasons
    assert "run short: a (may run in edge only: box)" in why.reasons


def test_pools_without_workers_are_named() -> None:
    kept = replace(operator("a", ["camera"], variant("x", {"box": 0.2, "gpu": 0.01})), tiers=("edge",))
    why = _why(problem(kept, pools=[box(0), gpu()]))
    only = "it may run in edge only, where the pools with a profile of x have no workers: box (count 0)"
    assert any(only in reason for reason in why.reasons)


def test_too_small_a_fleet_without_a_target() -> None:
    why = _why(_variants(rate_per_s=40.0))

    assert why.nearest_accuracy is None
    assert why.nearest_rate_scale == pytest.approx(0.5, rel=1e-5)


def test_whole_workers_may_be_what_is_missing() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.01}, {"b": 0.0})),
        operator("b", ["a"], variant("y", {"box": 0.01})),
        pools=[box(1, sharing=Sharing.EXCLUSIVE)],
    )
    why = _why(case)

    assert why.nearest_rate_scale is None
    (reason,) = why.reasons
    assert reason == (
        "sharing: no plan fits, however low the rates are; all of the rates would fit if exclusive pools (box), which "
        "give each operator whole workers, were shared"
    )


def test_memory_is_named_with_its_figures_where_it_keeps_all_plans_out() -> None:
    why = _why(_two_models(rate_per_s=1.0, pool=box(memory=2**30)))
    assert why.reasons == (
        "memory: no plan fits, however low the rates are; with enough memory all of the rates would fit: a worker of "
        "box has 1 GiB, its models need a x 700 MiB, b y 600 MiB",
    )


def test_memory_is_named_where_it_limits_the_rates() -> None:
    why = _why(_two_models(rate_per_s=150.0, pool=box(2, memory=2**30)))
    assert why.reasons[0].startswith("memory: at most 0.6667 of the rates fits (camera 100 of 150/s), with a x, b y")
    assert "all of the rates would fit: a worker of box has 1 GiB" in why.reasons[0]


def test_memory_is_not_blamed_for_a_lack_of_workers() -> None:
    why = _why(_two_models(rate_per_s=300.0, pool=box(2, memory=1.5 * GIB)))  # both models fit on a worker
    assert why.reasons[0].startswith("capacity: at most 0.606")
    assert not any("memory" in reason for reason in why.reasons)


@pytest.mark.parametrize("sharing", list(Sharing))
def test_memory_is_named_with_its_figures_where_it_keeps_the_accuracy_down(sharing: Sharing) -> None:
    why = _why(_with_large_variant(1.0, [box(2, memory=2**29, sharing=sharing)]))
    assert why.reasons[0] == (
        "accuracy: the target is 80, but the best selection reaches 50 (a small); with enough memory 90 would be "
        "reached: a big needs 800 MiB, a worker of box has 512 MiB"
    )
    assert why.nearest_accuracy == 50.0


@pytest.mark.parametrize("sharing", list(Sharing))
def test_memory_is_named_where_the_accurate_variant_fits_on_too_few_workers(sharing: Sharing) -> None:
    why = _why(_with_large_variant(300.0, [box(20, memory=2**29, sharing=sharing), gpu(1)]))
    assert why.reasons[0].startswith("memory: at most 0.3333 of the rates fits")
    assert why.reasons[0].endswith("would fit: a worker of box has 512 MiB, its models need a big 800 MiB")


def test_memory_is_not_named_for_an_accuracy_that_no_variant_reaches() -> None:
    case = _with_large_variant(1.0, [box(2, memory=2**29)])
    why = _why(replace(case, slo=Slo(accuracy=95.0)))
    assert why.reasons[0] == "accuracy: the target is 95, but the best selection reaches 50 (a small)"


def _with_large_variant(rate_per_s: float, pools: list[Pool]) -> Problem:
    """Accuracy 80 is asked for: variant small has 50 and 1 MiB, big 90 and 800 MiB; both take 0.01 s anywhere."""
    times, mib = {"box": 0.01, "gpu": 0.01}, 2.0**20
    return problem(
        operator(
            "a",
            ["camera"],
            variant("small", times, {}, dict.fromkeys(times, mib)),
            variant("big", times, {}, dict.fromkeys(times, 800 * mib)),
        ),
        pools=pools,
        rate_per_s=rate_per_s,
        accuracy=EndToEnd(("a",), {("small",): 50.0, ("big",): 90.0}),
        slo=Slo(accuracy=80.0),
    )


def test_a_budget_is_named_only_where_there_is_one() -> None:
    asked = _two_models(rate_per_s=1.0, pool=box(1, sharing=Sharing.EXCLUSIVE))
    why = _why(replace(asked, slo=Slo(budget_usd_per_h=0.5)))  # neither sharing nor more money suffices on its own
    assert why.reasons[0].endswith("too few workers for 2 operators within the budget of 0.50 USD/h")
    assert not any("budget" in reason for reason in _why(asked).reasons)


def _two_models(rate_per_s: float, pool: Pool) -> Problem:
    """An operator `a` of 0.01 s and 700 MiB feeds `b` of 0.001 s and 600 MiB."""
    mib = 2.0**20
    return problem(
        operator("a", ["camera"], variant("x", {"box": 0.01}, {"b": 0.0}, {"box": 700 * mib})),
        operator("b", ["a"], variant("y", {"box": 0.001}, {}, {"box": 600 * mib})),
        pools=[pool],
        rate_per_s=rate_per_s,
    )


def test_a_budget_is_final() -> None:
    why = _why(_variants(rate_per_s=10.0, slo=Slo(accuracy=80.0, budget_usd_per_h=0.5)))

    assert why.breaches == ("budget: 1.00 USD/h is 0.50 USD/h more than the 0.50 USD/h allowed",)
    assert why.reasons[0].endswith("allowed; no plan is cheaper")
    assert why.refused is not None
    assert why.refused.cost.total_usd_per_h == 1.0


def test_the_nearest_rate_within_a_budget() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.1})),
        pools=[box(count=3, price=1.0)],
        rate_per_s=30.0,
        slo=Slo(budget_usd_per_h=2.0),
    )
    assert _why(case).nearest_rate_scale == pytest.approx(2 / 3, rel=1e-5)


def test_a_model_too_large_for_every_worker() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.01}, {"b": 0.0}, {"box": 3 * 2.0**20})),
        operator("b", ["a"], variant("y", {"gpu": 0.01})),
        pools=[box(memory=2.0**20), gpu()],
    )
    (reason,) = _why(case).reasons
    assert reason == "operator a cannot run anywhere: memory: even x needs 3 MiB, a worker of box has 1 MiB"


def test_a_link_too_narrow_is_named_with_what_it_can_carry() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"box": 0.01}, {"b": 1e5})),
        operator("b", ["a"], variant("y", {"gpu": 0.01})),
        pools=[box(), gpu()],
        links=[Link("edge", "cloud", 0.1, bandwidth_bytes_per_s=5e5)],
    )
    why = _why(case)

    assert why.reasons[0].endswith("with a x, b y; link edge -> cloud (4 Mbit/s) is full")
    assert not any("utilisation" in reason or "full link" in reason for reason in why.reasons)
    assert why.nearest_rate_scale == pytest.approx(0.5, rel=1e-5)


def test_a_rule_that_fills_a_link_names_it() -> None:
    rules = baselines(_far_from_source(rate_per_s=60.0, bandwidth_bytes_per_s=1.25e6))
    (note,) = (rule.note for rule in rules if rule.name == "all in cloud")
    assert note == (
        "infeasible with the workers of cloud alone: capacity: at most 0.2083 of the rates fits (camera 12.5 of 60/s), "
        "with a x; link edge -> cloud (10 Mbit/s) is full"
    )


def test_a_full_link_is_named_for_a_sliver_of_the_rates() -> None:
    why = _why(_far_from_source(rate_per_s=1e9, bandwidth_bytes_per_s=5e5))
    assert why.reasons[0].endswith("; link edge -> cloud (4 Mbit/s) is full")
    assert "utilisation" not in why.reasons[0]


def test_a_link_with_room_is_not_named_and_the_utilisation_is() -> None:
    why = _why(_far_from_source(rate_per_s=1e3, bandwidth_bytes_per_s=1e9))
    assert why.reasons[0].endswith("at a utilisation of at most 1")
    assert not any("link" in reason for reason in why.reasons)


def test_a_full_link_is_named_with_the_utilisation_where_both_bind() -> None:
    """50/s in the cloud through the link, 100/s at the edge."""
    case = _far_from_source(rate_per_s=1e3, bandwidth_bytes_per_s=5e6)
    anywhere = operator("a", ["camera"], variant("x", {"gpu": 0.01, "box": 0.01}))
    why = _why(replace(case, operators=(anywhere,), pools=(box(), gpu())))
    assert why.reasons[0].endswith("at a utilisation of at most 1; link edge -> cloud (40 Mbit/s) is full")
    assert "camera 150 of 1,000/s" in why.reasons[0]


def test_a_full_pool_beside_an_idle_one_does_not_hide_the_link() -> None:
    """Which pools of the cloud are full says nothing while the others have room."""
    case = _far_from_source(rate_per_s=1e3, bandwidth_bytes_per_s=5e6)
    anywhere = operator("a", ["camera"], variant("x", {"gpu": 0.1, "tpu": 0.01}))
    why = _why(replace(case, operators=(anywhere,), pools=(gpu(), replace(gpu(), name="tpu"))))
    assert why.reasons[0].endswith("with a x; link edge -> cloud (40 Mbit/s) is full")


def _far_from_source(rate_per_s: float, bandwidth_bytes_per_s: float) -> Problem:
    """Messages of 100 kB go to the cloud, where an operator takes 0.01 s."""
    return problem(
        operator("a", ["camera"], variant("x", {"gpu": 0.01})),
        pools=[box(), gpu()],
        rate_per_s=rate_per_s,
        message_bytes=1e5,
        links=[Link("edge", "cloud", 0.1, bandwidth_bytes_per_s=bandwidth_bytes_per_s)],
    )


def test_an_operator_that_may_only_run_where_nothing_can_run_it() -> None:
    case = problem(
        replace(operator("a", ["camera"], variant("x", {"gpu": 0.01})), tiers=("edge",)), pools=[box(), gpu()]
    )
    (reason,) = _why(case).reasons
    assert reason.endswith("it may run in edge only, where no worker pool has a profile of x")


def test_nearest_targets_are_withheld_when_their_plan_would_be_refused() -> None:
    case = _variants(rate_per_s=10.0, slo=Slo(accuracy=90.0))
    heavy = tuple(replace(v, memory_bytes={"box": 10.0}) for v in case.operators[0].variants)
    case = replace(case, operators=(replace(case.operators[0], variants=heavy),), pools=(box(memory=5.0),))
    why = _why(case)

    assert (why.nearest_accuracy, why.nearest_rate_scale) == (None, None)


def test_variants_that_reach_the_accuracy_run_where_data_cannot_flow() -> None:
    case = problem(
        operator("a", ["camera"], variant("poor", {"box": 0.01}), variant("good", {"gpu": 0.01})),
        pools=[box(), gpu()],
        links=[],
        accuracy=EndToEnd(("a",), {("poor",): 50.0, ("good",): 90.0}),
        slo=Slo(accuracy=80.0),
    )
    why = _why(case)

    assert why.reasons[0].startswith("no selection of variants that reaches accuracy 80 can be placed")
    assert why.nearest_accuracy == 50.0
    assert why.nearest_rate_scale is None


def test_an_explanation_cut_short_by_time_says_so() -> None:
    ticks = itertools.count(0.0, 1.0)
    said = set()
    for limit in range(2, 12):
        try:
            solution = solve(_variants(rate_per_s=40.0), time_limit_s=limit, clock=lambda: next(ticks))
        except SolverError:
            continue
        assert solution.infeasibility is not None
        said.add(solution.infeasibility.reasons[0].split(":")[0])
    assert said == {
        "capacity",
        "no plan exists; what binds was not found in time",
    }


@pytest.mark.parametrize("rate_per_s", [1e4, 1e7, 1e9, 1e12])
def test_rates_far_above_what_fits(rate_per_s: float) -> None:
    why = _why(_variants(rate_per_s=rate_per_s, slo=Slo(accuracy=90.0)))

    assert why.nearest_rate_scale == pytest.approx(5.0 / rate_per_s, rel=1e-5)
    assert why.reasons[0].startswith("capacity: at most")
    assert f"nearest: {4.999 / rate_per_s:.4g} times these rates is feasible at this accuracy" in why.reasons


def test_a_budget_that_pays_for_a_sliver_of_the_rates() -> None:
    case = problem(
        operator("a", ["camera"], variant("x", {"gpu": 1e-4})),
        pools=[gpu(price=0.0)],
        message_bytes=GIB,
        links=[Link("edge", "cloud", 1.0)],
        slo=Slo(budget_usd_per_h=36e-6),  # one GiB costs 1 USD; 36 000 are sent in an hour
    )
    why = _why(case)

    assert why.nearest_rate_scale == pytest.approx(1e-9, rel=1e-3)
    assert not any("utilisation" in reason for reason in why.reasons)


def test_the_missing_link_is_named_where_a_tier_would_have_to_forward_data() -> None:
    tiers, links = ["box", "hub", "cloud"], {("box", "hub"), ("hub", "cloud")}
    assert missing_links(tiers, links, [["box"]], ["cloud"]) == (("box", "cloud"),)
    text = "no link from box to cloud, and data does not pass through hub: add a link {from: box, to: cloud}"
    assert missing_link_text(links, ("box", "cloud")) == text
    assert missing_link_text({("box", "hub")}, ("box", "cloud")) == (
        "no link from box to cloud: add a link {from: box, to: cloud}"
    )
    assert missing_links(tiers, links, [["cloud"]], ["box"]) == ()  # no link may go down


def test_all_links_that_a_join_lacks_are_named() -> None:
    """A diamond: with some of these links alone, one of the inputs would still not arrive."""
    tiers = ["box", "hub", "cloud", "core"]
    assert missing_links(tiers, (), [["box"], ["hub"]], ["cloud"]) == (("box", "cloud"), ("hub", "cloud"))
    assert missing_links(tiers, {("box", "core")}, [["box"], ["hub"]], ["cloud", "core"]) == (("hub", "core"),)
    assert missing_links(tiers, (), [["box", "cloud"], ["cloud"]], ["box", "cloud"]) == ()  # both may meet in cloud
    assert missing_links(tiers, (), [["box"], ["core"]], ["cloud"]) == ()  # core is above cloud


def test_chains_of_links_of_many_tiers_are_searched_in_steps_not_in_paths() -> None:
    tiers = [f"t{number}" for number in range(40)]
    links = set(itertools.combinations(tiers[:-1], 2)) - {("t0", "t38")}  # 2^37 paths, none to t39
    assert missing_link_text(links, ("t0", "t39")) == "no link from t0 to t39: add a link {from: t0, to: t39}"
    assert "pass through t1: add" in missing_link_text(links, ("t0", "t38"))


def test_the_reason_of_an_infeasible_placement_names_the_missing_link() -> None:
    step = operator("see", ["camera"], variant("v", {"server": 0.01}))
    asked = problem(step, pools=[replace(box(2), name="server", tier="cloud")], rate_per_s=5.0)
    asked = replace(asked, tiers=("edge", "hub", "cloud"), links=(Link("edge", "hub"), Link("hub", "cloud")))
    why = solve(asked).infeasibility
    assert why is not None
    assert "no link from edge to cloud, and data does not pass through hub" in why.reasons[0]


def _over_three_tiers(a: Edge, a_tiers: tuple[str, ...], b_tiers: tuple[str, ...]) -> Problem:
    """`a` and `b` in a row, on workers in edge, hub and cloud; links edge -> hub -> cloud."""
    loads = {"box": 0.01, "node": 0.01, "gpu": 0.01}
    asked = problem(
        replace(operator("a", [a], variant("x", loads, {"b": 0.0, "c": 0.0})), tiers=a_tiers),
        replace(operator("b", ["a"], variant("y", loads)), tiers=b_tiers),
        pools=[box(), replace(box(), name="node", tier="hub"), gpu()],
    )
    return replace(asked, tiers=("edge", "hub", "cloud"), links=(Link("edge", "hub"), Link("hub", "cloud")))


EVERYWHERE = ("edge", "hub", "cloud")


@pytest.mark.parametrize(
    ("kept", "a_tiers", "b_tiers", "said", "link"),
    [
        (("edge",), ("hub",), EVERYWHERE, "links: a in hub only, and the data camera -> a in edge only", None),
        (("edge",), ("cloud",), EVERYWHERE, "links: a in cloud only, and the data camera -> a in edge only", None),
        (None, ("cloud",), EVERYWHERE, "operator a can only run in tier cloud", ("edge", "cloud")),
        (None, ("cloud",), ("hub",), "operator b can only run in tier hub", None),  # data would have to go down
        (None, ("edge",), ("cloud",), "operator b can only run in tier cloud", ("edge", "cloud")),
    ],
)
def test_a_link_is_recommended_only_if_data_can_flow_with_it(
    kept: tuple[str, ...] | None,
    a_tiers: tuple[str, ...],
    b_tiers: tuple[str, ...],
    said: str,
    link: tuple[str, str] | None,
) -> None:
    asked = _over_three_tiers(Edge("camera", "a", tiers=kept), a_tiers, b_tiers)
    (reason,) = _why(asked).reasons

    assert said in reason
    if link is None:
        assert "add a link" not in reason
    else:
        assert reason.endswith(f"add a link {{from: {link[0]}, to: {link[1]}}}")
        assert solve(replace(asked, links=(*asked.links, Link(*link)))).plan is not None


def test_residencies_that_no_placement_keeps_together_are_named() -> None:
    """Both readers reach a tier of `a`, but not the same one."""
    asked = _over_three_tiers(Edge("camera", "a"), ("edge", "hub"), EVERYWHERE)
    a, b = asked.operators
    b = replace(b, inputs=(Edge("a", "b", tiers=("edge",)),))
    loads = {"box": 0.01, "node": 0.01, "gpu": 0.01}
    c = replace(operator("c", [Edge("a", "c", tiers=("hub",))], variant("z", loads)), tiers=("hub", "cloud"))
    (reason,) = _why(replace(asked, operators=(a, b, c))).reasons

    assert reason.endswith("declared links: the data a -> b in edge only, and the data a -> c in hub only")


def test_a_selection_that_reaches_the_best_accuracy_is_not_said_to_miss_it() -> None:
    case = _variants(rate_per_s=1.0, slo=Slo(accuracy=90.0 + 1e-5))
    assert _why(case).reasons[0] == "accuracy: no selection is more accurate than 90 (a big)"


def test_that_no_accuracy_is_known_is_said() -> None:
    case = replace(_variants(rate_per_s=1.0, slo=Slo(accuracy=80.0)), accuracy=EndToEnd(("a",), {}))
    unknown = "the profile knows no complete selection of variants that can run on this infrastructure"
    assert _why(case).reasons == (f"accuracy: {unknown}",)
