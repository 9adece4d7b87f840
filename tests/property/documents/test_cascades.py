"""Cascades against enumeration: the cheapest plan without, or with one, of workflows written by hand."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jellybean.documents import build_problem, load_project
from jellybean.planning import plan_project, planned_cascades
from jellybean_solver import (
    Edge,
    EdgeKind,
    EndToEnd,
    Link,
    Operator,
    Pool,
    Problem,
    ServiceTime,
    Slo,
    Source,
    Variant,
    as_planned,
)
from tests.brute_force import optimum
from tests.plan_check import complaints
from tests.support.examples import examples

POOLS = ("box", "gpu")
SECONDS = (0.001, 0.01, 0.03, 0.06, 0.1)
BYTES = (100.0, 2e4, 1e5)


@st.composite
def cases(draw: st.DrawFn) -> dict:
    """Figures of a workflow camera -> look -> tell, in which `look` may be a cascade of small and large."""
    seconds, sizes = st.sampled_from(SECONDS), st.sampled_from(BYTES)

    def times() -> dict[str, float]:
        pools = draw(st.sampled_from((POOLS, POOLS, ("gpu",))))
        return {pool: draw(seconds) for pool in pools}

    names = ("small", "large", "first", "unsure", "then", "both", "tell")
    return {
        "times": {name: times() if name != "tell" else dict.fromkeys(POOLS, 0.001) for name in names},
        "sizes": {name: draw(sizes) for name in names},
        "passed_on": draw(st.sampled_from((0.1, 0.25, 0.5, 1.0))),
        "rate": draw(st.sampled_from((1.0, 5.0, 12.0))),
        "message": draw(sizes),
        "counts": {"box": draw(st.integers(1, 2)), "gpu": draw(st.integers(1, 3))},
        "prices": {"box": draw(st.sampled_from((0.1, 1.0))), "gpu": draw(st.sampled_from((0.5, 3.0)))},
        "link": draw(st.sampled_from((0.0, 0.1, 2.0))),
        "bandwidth": draw(st.sampled_from((None, 1e5, 1e6))),
        "target": draw(st.sampled_from((80, 91, 95.5, 97))),
        "fans_out": draw(st.booleans()),
    }


ACCURACY = {"small": 85.0, "large": 95.0, "both": 96.0}


def write(folder: Path, case: dict) -> None:
    """The documents of a case."""

    def profile(name: str, more: str = "") -> str:
        latency = ", ".join(f"{pool}: {1000 * value:g} ms" for pool, value in case["times"][name].items())
        return f"{{message: {case['sizes'][name]:g} B, latency: {{{latency}}}{more}}}"

    look, tell = ("{from: camera, ratio: 2}", "{from: look, gather: true}") if case["fans_out"] else ("camera", "look")
    (folder / "workflow.yaml").write_text(
        f"""\
kind: Workflow
name: random
sources: {{camera: {{tier: edge, rate: {case["rate"]:g}/s, message: {case["message"]:g} B}}}}
operators:
  look:
    inputs: [{look}]
    variants: {{small: {{}}, large: {{}}, both: {{cascade: {{first: small, then: large, when: a < 1}}}}}}
  tell: {{inputs: [{tell}], variants: [plain]}}
slo: {{accuracy: {case["target"]}}}
""",
        encoding="utf-8",
    )
    bandwidth = "" if case["bandwidth"] is None else f", bandwidth: {8 * case['bandwidth'] / 1e6:g} Mbit/s"
    workers = "".join(
        f"  {pool}: {{tier: {tier}, count: {case['counts'][pool]}, price: {case['prices'][pool]} USD/h}}\n"
        for pool, tier in zip(POOLS, ("edge", "cloud"), strict=True)
    )
    (folder / "infrastructure.yaml").write_text(
        f"kind: Infrastructure\ntiers: [edge, cloud]\nworkers:\n{workers}"
        f"links: [{{from: edge, to: cloud, price: {case['link']:g} USD/GiB{bandwidth}}}]\nlimits: {{utilisation: 1}}\n",
        encoding="utf-8",
    )
    share = 100 * case["passed_on"]
    children = f", children: [{100 - share:g} %, {share:g} %]"
    rows = "".join(
        f"    - {{selection: {{look: {name}}}, accuracy: {ACCURACY[name]}}}\n" for name in ("small", "large")
    )
    (folder / "profiles.yaml").write_text(
        f"""\
kind: Profiles
operators:
  look: {{small: {profile("small")}, large: {profile("large")}}}
  tell: {{plain: {profile("tell")}}}
cascades:
  look:
    both:
      operators:
        look.first: {{small: {profile("first")}}}
        look.unsure: {{both: {profile("unsure", children)}}}
        look.then: {{large: {profile("then")}}}
        look: {{both: {profile("both")}}}
      accuracy: {{end_to_end: [{{selection: {{}}, accuracy: {ACCURACY["both"]}}}]}}
accuracy:
  end_to_end:
{rows}""",
        encoding="utf-8",
    )


def references(case: dict) -> tuple[Problem, Problem]:
    """The problems without and with the cascade, made without the documents' code."""

    def variant(figures: str, name: str, *readers: str) -> Variant:
        service = {pool: {1: ServiceTime(value, value)} for pool, value in case["times"][figures].items()}
        return Variant(name, service, dict.fromkeys(readers, case["sizes"][figures]))

    enters = Edge("camera", "look", EdgeKind.FAN_OUT, 2.0) if case["fans_out"] else Edge("camera", "look")
    leaves = Edge("look", "tell", EdgeKind.GATHER, 0.5) if case["fans_out"] else Edge("look", "tell")
    tell = Operator("tell", (leaves,), (variant("tell", "plain"),))
    plain = Operator("look", (enters,), (variant("small", "small", "tell"), variant("large", "large", "tell")))
    share = case["passed_on"]
    parts = (
        Operator(
            "first", (Edge("camera", "first", enters.kind, enters.ratio),), (variant("first", "v", "unsure", "look"),)
        ),
        Operator(
            "unsure",
            (Edge("first", "unsure"), Edge("camera", "unsure", enters.kind, enters.ratio)),
            (variant("unsure", "v", "then"),),
        ),
        Operator("then", (Edge("unsure", "then", EdgeKind.FAN_OUT, share),), (variant("then", "v", "look"),)),
        Operator(
            "look",
            (Edge("first", "look"), Edge("then", "look", EdgeKind.GATHER, 1.0 / share)),
            (variant("both", "both", "tell"),),
        ),
    )

    def problem(operators: tuple[Operator, ...], accuracy: EndToEnd) -> Problem:
        return Problem(
            name="reference",
            tiers=("edge", "cloud"),
            sources=(Source("camera", "edge", case["rate"], case["message"]),),
            operators=operators,
            pools=tuple(
                Pool(pool, tier, case["counts"][pool], case["prices"][pool])
                for pool, tier in zip(POOLS, ("edge", "cloud"), strict=True)
            ),
            links=(Link("edge", "cloud", case["link"], case["bandwidth"]),),
            accuracy=accuracy,
            slo=Slo(accuracy=case["target"]),
            utilisation=1.0,
        )

    known = {(name,): percent for name, percent in ACCURACY.items()}
    return problem((plain, tell), EndToEnd(("look",), known)), problem((*parts, tell), EndToEnd(("look",), known))


@pytest.mark.timeout(1200)
@settings(max_examples=examples(40, nightly=1000))
@given(cases())
def test_the_cheapest_plan_without_or_with_a_cascade(case: dict) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, case)
        project = load_project(folder)
        planned = plan_project(project, compare=False)
        found = [optimum.cheapest(problem).cost for problem in references(case)]
        costs = [math.inf if cost is None else cost for cost in found]
        if planned.plan is None:
            event("no plan")
            assert costs == [math.inf, math.inf]
            return
        plan = planned.plan
        used = bool(planned_cascades(plan))
        event("cascade" if used else "one variant")
        assert plan.cost.total_usd_per_h == pytest.approx(min(costs), rel=1e-6, abs=1e-9)
        assert costs[used] == pytest.approx(min(costs), rel=1e-6, abs=1e-9)
        assert planned.status == "optimal"
        assert complaints(as_planned(build_problem(project), plan), plan) == []
