"""A soft p99 latency on the command line: what `plan` and the commands after it say about its penalty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import jellybean
from tests.support.scales_project import make_scales_project

SOFT = "{target: 60 ms, penalty: 0.003 USD/h per 10 ms}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A box, which takes 40 ms a request, and another one are worth the time that they save; a third is not."""
    folder = make_scales_project(tmp_path / "scales")
    for name, before, after in (
        ("workflow.yaml", "arrivals: periodic", "arrivals: poisson"),
        ("infrastructure.yaml", "count: 1, price: 0.1", "count: 6, price: 0.1"),
        ("infrastructure.yaml", "links:", "limits: {utilisation: 0.95}\nlinks:"),
        ("profiles.yaml", "latency: {box: 1 ms}", "latency: {box: 40 ms}"),
        ("profiles.yaml", "latency: {box: 3 ms}", "latency: {box: 45 ms}"),
    ):
        file = folder / name
        text = file.read_text(encoding="utf-8")
        assert before in text
        file.write_text(text.replace(before, after), encoding="utf-8")
    with (folder / "workflow.yaml").open("a", encoding="utf-8") as file:
        file.write(f"slo: {{latency_p99: {SOFT}}}\n")
    return folder


@pytest.mark.slow
def test_a_soft_p99_latency_is_weighed_and_told_by_all_commands(project: Path) -> None:
    told = json.loads(jellybean("plan", str(project), "--json").stdout)
    proof = told["certificate"]
    assert proof["penalty"] == pytest.approx(proof["objective"] - told["cost_usd_per_h"]["total"])
    assert proof["bound"] <= proof["objective"]
    (reached,) = told["latency_p99"]["reached"]
    assert reached["penalty_usd_per_h"] == pytest.approx(0.3 * (reached["simulated_s"] - 0.06))
    assert reached["target_s"] == 0.06

    text = " ".join(jellybean("plan", str(project)).stdout.split())
    assert "(soft target 60.0 ms: counts 0.11 USD/h)" in text and "with the penalty" in text
    assert "> 60.0 ms, soft: counts 0.11 USD/h" in text
    assert "least cost and penalty of the cheapest plans without and with" in text

    simulated = jellybean("simulate", str(project))
    assert "penalty, p99 above 60.0 ms" in simulated.stdout and "planned again" not in simulated.stderr
    page = project / "report.html"
    report = " ".join(jellybean("report", str(project), "--html", str(page)).stdout.split())
    assert "soft 60.0 ms: counts 0.11 USD/h" in report and "broken" not in report
    assert "soft 60.0 ms: counts 0.11 USD/h" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_trace_is_not_broken_by_a_soft_target(project: Path) -> None:
    trace = project / "trace.csv"
    trace.write_text("time_s,source,rate_per_s\n0,x,20\n60,x,21\n120,x,20\n180,x,0\n", encoding="utf-8")
    done = jellybean("plan", str(project), "--check", str(trace), "--json")
    told = json.loads(done.stdout)
    assert told["verdict"] == "holds"
    assert 0.0 < told["latency_penalty_usd_per_h"]["mean"] <= told["latency_penalty_usd_per_h"]["highest"]
    assert "soft p99 target 60.0 ms: counts up to" in jellybean("plan", str(project), "--check", str(trace)).stdout


@pytest.mark.slow
def test_other_questions_count_it_too(project: Path) -> None:
    """`plan --from`, `calendar` and `frontier`."""
    loose = ("--set", "slo.latency_p99={target: 2 s, penalty: 1 USD/h per s}")
    strict = ("--set", "slo.latency_p99={target: 60 ms, penalty: 1 USD/h per s}")
    jellybean("plan", str(project), *loose)
    told = json.loads(jellybean("plan", str(project), "--from", str(project), "--dry-run", "--json", *strict).stdout)
    change = told["replan"]
    assert change["verdict"] == "replace"
    assert change["running"]["penalty_usd_per_h"] > change["best"]["penalty_usd_per_h"]
    trace = project / "day.csv"
    trace.write_text("time_s,source,rate_per_s\n0,x,4\n3600,x,20\n7200,x,0\n", encoding="utf-8")
    day = json.loads(jellybean("calendar", str(project), str(trace), "--json", *strict).stdout)
    assert day["penalty_usd"] == pytest.approx(sum(one.get("penalty_usd", 0.0) for one in day["periods"])) != 0.0
    curve = jellybean("frontier", str(project), *strict).stdout
    assert "costs count the penalties of p99 latencies above soft targets" in " ".join(curve.split())


@pytest.mark.slow
def test_an_option_replaces_the_long_form_too(project: Path) -> None:
    """The form that Workflow resources have."""
    file = project / "workflow.yaml"
    text = file.read_text(encoding="utf-8")
    long_form = "slo: {soft_latency_p99: 60 ms, latency_penalty: 0.003 USD/h per 10 ms}"
    assert f"slo: {{latency_p99: {SOFT}}}" in text
    file.write_text(text.replace(f"slo: {{latency_p99: {SOFT}}}", long_form), encoding="utf-8")
    told = json.loads(jellybean("plan", str(project), "--set", "slo.latency_p99=60 ms", "--json").stdout)
    (reached,) = told["latency_p99"]["reached"]
    assert reached["target_s"] == 0.06 and "penalty_usd_per_h" not in reached
    assert json.loads(jellybean("plan", str(project), "--set", "slo.latency_p99=null", "--json").stdout)[
        "certificate"
    ].get("penalty", 0.0) == pytest.approx(0.0)


def test_a_penalty_without_a_time_is_an_error_with_its_place(project: Path) -> None:
    done = jellybean("plan", str(project), "--set", "slo.latency_p99={target: 60 ms, penalty: 1 USD/h}", status=2)
    assert "'1 USD/h' does not say per how much time" in done.stderr
    assert "write for example 0.02 USD/h per 10 ms" in done.stderr
