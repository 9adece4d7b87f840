from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from jellybean.display import formats
from jellybean.report import Store, build_report, plan_text, to_table
from jellybean.report.plans.plan_view import comparison
from jellybean_solver import Plan
from tests import report_plans as plans

BASELINES = (
    ("greedy tier by tier", 7.51, ""),
    ("all in the cloud", 12.31, ""),
    ("cheapest variants", 4.68, "accuracy 54.02 is below the target of 56"),
    ("all at the edge", None, "infeasible: cpu has 6 workers"),
)


def _text(renderable: RenderableType, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    output = console.file
    assert isinstance(output, io.StringIO)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def _report_text(tmp_path: Path, plan: Plan, *, measured: bool) -> str:
    store = Store(tmp_path / ".jellybean" / "report.db", clock=lambda: 1.0)
    plan_hash = store.add_plan(plans.document(plan), {"solve_s": 0.12, "baselines": []})
    store.add_prediction(plan_hash, plans.prediction(plan))
    if measured:
        store.add_measurement(plan_hash, plans.measurement(plan))
        store.add_measurement(plan_hash, {"highest_rate_per_s": 21.0})
    return _text(to_table(build_report(store)))


PLAN = """\
visual-question-answering: 7.03 USD/h (compute 5.67, network 1.36), accuracy 56.59 >= 56, proven optimal in
0.12 s
  operator        variant         where           rate/s  load
  image_features  resnet18        edge: cpu-1..3    40.0  0.99
  speech_to_text  wav2vec2-large  cloud: gpu-1      40.0  0.86
  answer          mutan           cloud: gpu-1      40.0  0.14
  saves   6 % against greedy tier by tier (7.51)
  saves  43 % against all in the cloud (12.31)
  cheapest variants (4.68) is not a valid plan: accuracy 54.02 is below the target of 56
  all at the edge: infeasible: cpu has 6 workers"""


def test_plan_text_is_the_answer_then_why_then_what_it_beat() -> None:
    assert _text(plan_text(plans.vqa(), 0.12, BASELINES)) == PLAN


REPORT = """\
digits: 0.72 USD/h (compute 0.72, network 0.0048), accuracy 93.10 >= 90, proven optimal in 0.12 s
  operator  variant   where                rate/s  load
  find      find      edge: edge-box-1       12.0  0.05
  shape     mlp-int8  edge: edge-box-1..2    48.0  0.17
  strokes   cnn       cloud: cloud-1         48.0  0.25
  read      vote      cloud: cloud-1         48.0  0.04
  number    join      cloud: cloud-1         12.0  0.01
  workers and links suffice for rates up to +167 % (cloud-1), or times up to +167 % (cloud-1 is then busy 0.8
  of the time)

Meets its targets, as predicted: 7 of 7 figures and 3 of 3 utilisations within tolerance of the prediction

  figure                  predicted  measured  ratio  tolerance  verdict  target
  Cost (USD/h)                 0.72      0.73   1.01      ± 5 %  within   <= 10.00 met
  Accuracy (%)                93.10     92.70   1.00  ± 1 point  within   >= 90.00 met
  Throughput                 12.0/s    12.0/s   1.00      ± 5 %  within
  Highest sustained rate     22.8/s    21.0/s   0.92     ± 15 %  within
  Latency p50               61.0 ms   66.0 ms   1.08     ± 25 %  within
  Latency p90               94.0 ms    109 ms   1.16     ± 35 %  within
  Latency p99                151 ms    188 ms   1.25     ± 50 %  within   <= 800 ms met

  cost of   USD/h  share
  find     0.0220    3 %
  shape    0.1700   24 %
  strokes  0.4376   61 %
  read     0.0757   10 %
  number   0.0126    2 %
  traffic  0.0048  < 1 %

  worker      tier   utilisation       planned  simulated  measured  verdict
  edge-box-1  edge   ━━━━────────────     21 %       21 %      23 %  within
  edge-box-2  edge   ━━━─────────────     17 %       16 %      18 %  within
  cloud-1     cloud  ━━━━━───────────     30 %       30 %      32 %  within"""


def test_report_table(tmp_path: Path) -> None:
    assert _report_text(tmp_path, plans.digits(), measured=True) == REPORT


def test_batches_stand_beside_the_worker_that_takes_them() -> None:
    lines = _text(plan_text(plans.in_batches())).splitlines()
    assert [line.split() for line in lines if "gpu-1" in line or "cpu-1" in line] == [
        ["image_features", "resnet18", "edge:", "cpu-1..3", "1", "40.0", "0.99"],
        ["speech_to_text", "wav2vec2-large", "cloud:", "gpu-1", "4", "40.0", "0.22"],
        ["answer", "mutan", "cloud:", "gpu-1", "4", "40.0", "0.03"],
    ]
    assert "batch" in lines[1]


def test_a_worker_with_batches_is_held_against_the_simulator_not_against_full_batches(tmp_path: Path) -> None:
    plan = plans.in_batches()
    store = Store(tmp_path / "report.db", clock=lambda: 1.0)
    plan_hash = store.add_plan(plans.document(plan), {})
    store.add_prediction(plan_hash, plans.prediction(plan, utilisation={w.name: 0.5 for w in plan.workers}))
    store.add_measurement(plan_hash, plans.measurement(plan))
    report = build_report(store)
    assert {worker.name: worker.expected for worker in report.workers if worker.pool == "gpu"} == {"gpu-1": 0.5}
    (gpu,) = [line for line in _text(to_table(report)).splitlines() if line.split()[:2] == ["gpu-1", "cloud"]]
    assert gpu.split()[-7:] == ["25", "%", "50", "%", "26", "%", "lower"]


def test_the_interval_of_a_prediction_is_in_the_table_where_the_terminal_is_wide_enough(tmp_path: Path) -> None:
    plan = plans.digits()
    store = Store(tmp_path / "report.db", clock=lambda: 1.0)
    plan_hash = store.add_plan(plans.document(plan), {})
    interval = {"latency_p99_low_s": 0.149, "latency_p99_high_s": 0.153}
    store.add_prediction(plan_hash, plans.prediction(plan, **interval))
    store.add_measurement(plan_hash, plans.measurement(plan))
    tables = {width: _text(to_table(build_report(store)), width).splitlines() for width in (80, 110)}
    p99 = {width: [line.split() for line in lines if "Latency p99" in line] for width, lines in tables.items()}
    figures = ["188", "ms", "1.25", "±", "50", "%", "within", "<=", "800", "ms", "met"]
    interval_words = ["151", "ms", "(149", "to", "153)"]
    assert p99[80] == [
        ["Latency", "p99", "151", "ms", *figures[:7]],
        ["Latency", "p99", "predicted:", *interval_words],
        ["Latency", "p99:", *figures[7:]],
    ]
    assert p99[110] == [["Latency", "p99", *interval_words, *figures]]
    assert max(map(len, tables[80])) <= 80


def test_report_table_without_a_measurement_ends_with_the_commands(tmp_path: Path) -> None:
    text = _report_text(tmp_path, plans.digits(), measured=False)
    assert "Not measured yet: All figures are predictions" in text
    assert f"next: jellybean bench {tmp_path}" in " ".join(text.split())


def test_many_workers_are_shown_by_pool(tmp_path: Path) -> None:
    text = _report_text(tmp_path, plans.large(), measured=True)
    assert "street-cabinet × 16" in text
    assert "street-cabinet-16  edge " not in text


def test_names_are_never_read_as_markup(tmp_path: Path) -> None:
    plan = plans.one_worker("[red]name[/red]", "[bold]operator", "[/]variant")
    text = _report_text(tmp_path, plan, measured=True)
    for name in ("[red]name[/red]", "[bold]operator", "[/]variant"):
        assert name in text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (formats.number(7.0115), "7.01"), (formats.number(1234.5), "1,234"), (formats.number(0.0), "0"),
        (formats.number(0.00427), "0.00427"), (formats.usd(0.0048), "0.0048"), (formats.usd(12.345), "12.35"),
        (formats.usd(0.0), "0.00"), (formats.usd(None), "–"), (formats.duration(0.0123), "12.3 ms"),
        (formats.duration(0.9996), "1.00 s"), (formats.duration(2.5), "2.50 s"), (formats.duration(5e-5), "50.0 µs"),
        (formats.duration(180), "3.00 min"), (formats.byte_rate(3_970_000), "3.97 "
        "MB/s"), (formats.byte_rate(0), "0 B/s"),
        (formats.size(794 * 1024), "794 KiB"), (formats.size(5), "5 B"), (formats.percent(0.994), "99 %"),
        (formats.percent(0.004), "< 1 %"), (formats.plain(56.0), "56"), (formats.plain(0.25), "0.25"),
        (formats.moment(0), "1970-01-01 00:00 UTC"),
    ],
)  # fmt: skip
def test_units(shown: str, text: str) -> None:
    assert shown == text


def test_costs_that_look_alike_are_said_to_be_the_same_or_shown_until_they_differ() -> None:
    baselines = [("twin", 0.7801, ""), ("near", 0.7823, ""), ("far", 1.56, "")]
    assert _text(comparison(0.78, baselines)).splitlines() == [
        "costs the same as twin (0.78), to 0.1 %",
        "saves 0.3 % against near (0.782)",
        "saves  50 % against far (1.56)",
    ]
