"""The operator's own metrics: what they say of resources, and that the documentation names each."""

from __future__ import annotations

import re
from pathlib import Path

from jellybean.operator.conditions import Serving, condition, health
from jellybean.operator.metrics import OperatorMetrics

DOCS = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def told(metrics: OperatorMetrics) -> dict[str, float]:
    lines = (line for line in metrics.text().decode().splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def test_a_resource_whose_plan_was_refused_is_stale_while_an_earlier_one_serves() -> None:
    metrics = OperatorMetrics(lambda: 1000.0)
    planned, refused = condition("Planned", True, "Planned", ""), condition("Deployed", False, "NotReady", "no pods")
    series = 'jellybean_operator_resource_stale{name="a",namespace="n"}'
    for known, serving, stale in (
        ([planned, refused], Serving("1234", "a.n.svc"), 1.0),
        ([planned, refused], Serving(), 0.0),
        ([planned], Serving("1234", "a.n.svc", ("a pod is missing",)), 0.0),
        ([condition("Planned", False, "Infeasible", "")], Serving("1234", "a.n.svc"), 1.0),
        ([condition("Planned", None, "Suspended", "")], Serving("1234", "a.n.svc"), 0.0),
    ):
        metrics.looked_at("n", "a", [*known, *health(known, serving)])
        assert told(metrics)[series] == stale, known
    found = told(metrics)
    assert found['jellybean_operator_resource_condition{condition="Planned",name="a",namespace="n"}'] == -1
    assert found['jellybean_operator_resource_reconciled_timestamp_seconds{name="a",namespace="n"}'] == 1000
    metrics.forget("n", "a")
    metrics.forget("n", "a")
    assert not [series for series in told(metrics) if 'name="a"' in series]


def test_what_waits_for_a_thread_is_counted_until_it_has_one() -> None:
    metrics = OperatorMetrics()
    begins = [metrics.queue() for _ in range(3)]
    begins[0]()
    found = told(metrics)
    assert (found["jellybean_operator_queued"], found["jellybean_operator_queue_seconds_count"]) == (2, 1)
    with metrics.leading():
        assert told(metrics)["jellybean_operator_leader"] == 1
    assert told(metrics)["jellybean_operator_leader"] == 0


def test_the_documentation_names_every_metric() -> None:
    metrics = OperatorMetrics()
    metrics.looked_at("n", "a", [condition("Ready", True, "Serving", "")])
    names = set(re.findall(r"^# TYPE (\w+) ", metrics.text().decode(), re.MULTILINE))
    names = {name for name in names if not name.endswith("_created")}
    docs = DOCS.read_text(encoding="utf-8")
    assert len(names) == 10
    assert not [name for name in names if f"`{name}`" not in docs]
