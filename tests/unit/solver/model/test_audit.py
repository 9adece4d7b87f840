"""An audit in a problem and in its plans: capacity and cost of the reference, and nothing of it in the targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jellybean.planning import brains
from jellybean.planning.simulation import simulate_plan
from jellybean_solver import (
    AccuracyRow,
    Audit,
    Clock,
    Edge,
    EdgeKind,
    EndToEnd,
    LossKind,
    PerOperator,
    Plan,
    Problem,
    Slo,
    SolverError,
    Stage,
    evaluate,
    from_document,
    independent_streams_text,
    most_accurate_selection,
    p99_by_workflow,
    rate_trace,
    replay,
    request_streams,
    served_streams,
    solve,
    to_document,
    whole_selection,
    with_audit,
)
from jellybean_solver.planning.mixed import plan_with_spare_workers
from tests.support.small_problems import box, gpu, operator, problem, variant

SHARE = 0.1
REFERENCE = {"read": "large"}


def base(large_s: float = 0.15, **more: object) -> Problem:
    """10 requests/s: `small` takes half a box, `large` at 10 % a seventh of a GPU."""
    read = operator("read", ["camera"], variant("small", {"box": 0.05}), variant("large", {"gpu": large_s}))
    accuracy = EndToEnd(("read",), {("small",): 90.0, ("large",): 95.0})
    return problem(read, pools=[box(2), gpu(2)], accuracy=accuracy, slo=Slo(accuracy=89.0), **more)


def audit(share: float = SHARE) -> Audit:
    agreements = {("small",): 93.0, ("large",): 100.0}
    return Audit(share, REFERENCE, "top1", "read", 95.0, ("read",), agreements, 400)


def planned(asked: Problem) -> Plan:
    plan = solve(asked).plan
    assert plan is not None
    assert evaluate(asked, plan).complaints == ()
    return plan


def test_the_plan_has_the_reference_at_its_share_and_proves_the_cost_of_both() -> None:
    plain, asked = base(), with_audit(base(), audit())
    plan = planned(asked)
    assert plan.operator_by_name["audit.read"].variant == "large"
    assert plan.operator_by_name["audit.read"].rate_per_s == pytest.approx(SHARE * 10.0)
    assert {source.name: source.rate_per_s for source in plan.sources} == {"camera": 10.0, "audit.camera": 1.0}
    assert plan.certificate.is_optimal
    assert plan.cost.total_usd_per_h == planned(plain).cost.total_usd_per_h + 3.0  # a GPU, which nothing else needs
    assert plan.accuracy == 90.0
    assert plan.audit is not None
    assert (plan.audit.share, plan.audit.agreement, plan.audit.requests) == (SHARE, 93.0, 400)
    assert from_document(to_document(plan)) == plan
    assert "audit" not in to_document(planned(plain))


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_an_audit_is_a_stream_of_its_own(share: float) -> None:
    plan = planned(with_audit(base(), audit(share)))
    (served,), (_, own) = served_streams(plan), request_streams(plan)
    assert (served.operators, served.rate_per_s, served.workflow) == (("read",), 10.0, "")
    assert (own.operators, own.rate_per_s, own.is_audit) == (("audit.read",), 10.0 * share, True)
    assert independent_streams_text(plan) == ""


def test_nobody_waits_for_an_audit() -> None:
    """The reference takes 400 ms, requests are answered within 200: in closed form, in simulation and in the search."""
    asked = with_audit(base(0.4), audit())
    alone, both = planned(base(0.4)), planned(asked)
    assert p99_by_workflow(both) == pytest.approx(p99_by_workflow(alone), rel=0.01)
    assert simulate_plan(both).latency_p99_s == pytest.approx(simulate_plan(alone).latency_p99_s, rel=0.2)
    assert simulate_plan(both).offered == pytest.approx(simulate_plan(alone).offered, rel=0.1)
    within = replace(asked, slo=replace(asked.slo, latency_p99_s=0.3))
    found = solve(within, p99_s=0.3).plan
    assert found is not None
    assert found.cost.total_usd_per_h == both.cost.total_usd_per_h


def test_audits_load_the_workers_that_they_share() -> None:
    """Where the reference runs on the worker of the served model, requests wait behind audits: that counts."""
    read = operator("read", ["camera"], variant("small", {"box": 0.04}), variant("large", {"box": 0.3}))
    accuracy = EndToEnd(("read",), {("small",): 90.0, ("large",): 95.0})
    plain = problem(read, pools=[box(1)], accuracy=accuracy)
    alone, both = planned(plain), planned(with_audit(plain, audit()))
    (worker,) = both.workers
    assert worker.load == pytest.approx(0.4 + 0.3)
    assert p99_by_workflow(both)[""] > 1.5 * p99_by_workflow(alone)[""]
    assert simulate_plan(both).latency_p99_s > 1.5 * simulate_plan(alone).latency_p99_s


def test_the_audit_follows_a_trace_of_rates() -> None:
    plan = planned(with_audit(base(0.05), audit()))
    trace = rate_trace([0.0, 100.0], 200.0, {"camera": [1.0, 8.0]})
    result = replay(plan, brains, trace, slow_latency_s=0.1)
    assert [one.offered for one in result.intervals] == pytest.approx([100, 800], rel=0.35)
    assert result.requests == sum(one.offered for one in result.intervals)  # of clients only


def test_a_plan_with_spare_workers_has_its_audit() -> None:
    plain = replace(base(), slo=Slo(accuracy=89.0, survives=(LossKind.WORKER,)))
    asked = with_audit(replace(plain, pools=(box(4), gpu(4))), audit())
    plan = plan_with_spare_workers(asked, gap=0.0, limit=Clock())
    assert plan is not None
    assert evaluate(asked, plan).complaints == ()
    assert all({"read", "audit.read"} == route.workers.keys() for route in plan.routes)


def test_too_little_capacity_for_the_audit_is_no_plan() -> None:
    assert solve(with_audit(base(4.0), audit())).plan is None


def test_fan_outs_keep_the_ratios_of_the_reference() -> None:
    find = operator("find", ["camera"], variant("few", {"box": 0.001}, {"read": 10.0}))
    find = replace(find, variants=(replace(find.variants[0], ratios={"read": 3.0}),))
    read = operator("read", [Edge("find", "read", EdgeKind.FAN_OUT, 3.0)], variant("small", {"box": 0.001}))
    accuracy = EndToEnd((), {(): 90.0})
    asked = Audit(SHARE, {"find": "few", "read": "small"}, "top1", "read", 90.0)
    plan = planned(with_audit(problem(find, read, pools=[box(2)], accuracy=accuracy), asked))
    assert plan.operator_by_name["audit.read"].rate_per_s == pytest.approx(3.0)
    (edge,) = plan.operator_by_name["audit.read"].inputs
    assert (edge.upstream, edge.downstream, edge.ratio) == ("audit.find", "audit.read", 3.0)
    assert plan.audit is not None
    assert plan.audit.agreement is None


@pytest.mark.parametrize(
    "asked",
    [
        with_audit(base(), audit()),
        problem(replace(base().operators[0], state=(("state", "next"),)), pools=[box(2), gpu(2)]),
        problem(replace(base().operators[0], name="audit.read"), pools=[box(2), gpu(2)]),
    ],
)
def test_what_is_not_audited_is_refused(asked: Problem) -> None:
    with pytest.raises(SolverError, match="audit"):
        with_audit(asked, audit())


def test_the_most_accurate_selection_is_the_cheapest_of_equals() -> None:
    sent = {"read": 1.0}
    first = operator("first", ["camera"], variant("dear", {"gpu": 0.1}, sent), variant("cheap", {"box": 0.01}, sent))
    read = operator("read", ["first"], variant("a", {"box": 0.1}), variant("b", {"box": 0.2}), variant("c", {}))
    table = {("dear", "a"): 90.0, ("cheap", "a"): 95.0, ("cheap", "b"): 95.0, ("dear", "b"): 95.0, ("dear", "c"): 99.0}
    asked = problem(first, read, pools=[box(9), gpu(9)], accuracy=EndToEnd(("first", "read"), table))
    assert most_accurate_selection(asked) == {"first": "cheap", "read": "a"}
    unknown = problem(first, read, pools=[box(9), gpu(9)])
    assert most_accurate_selection(unknown) is None
    rows = {"a": (AccuracyRow((), 80.0),), "b": (AccuracyRow((), 85.0),)}
    per_operator = PerOperator({"read": ()}, {"read": rows})
    assert most_accurate_selection(replace(asked, accuracy=per_operator)) == {"first": "cheap", "read": "b"}


def test_a_cut_model_counts_as_its_variant() -> None:
    (own, _) = planned(with_audit(base(), audit())).operators
    head, tail = (Stage("read", "small", first, last, 4) for first, last in ((1, 2), (3, 4)))
    parts = (replace(own, name="read.head", variant="small.1-2", stage=head), replace(own, stage=tail))
    assert whole_selection(parts) == {"read": "small"}
