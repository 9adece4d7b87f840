"""What a gateway takes of a worker's metrics: its own lines, and counters that grow as time and link allow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from jellybean.documents import load_any_project
from jellybean.ledger import Moment, Reading, Sent, SentKey
from jellybean.ledger.lines import interval
from jellybean.ledger.readings import COUNTS, RUNNING_S
from jellybean.planning import plan_project, require_plan
from jellybean.serving.gateway.plans import stated_metrics
from jellybean.serving.gateway.plans.stated_metrics import (
    ALLOWANCE,
    MAX_TEXT_BYTES,
    QUEUED_BYTES,
    StatedMetrics,
)
from jellybean_agent import WORKER_FAMILIES, PlanView, WorkerView, metrics_text, plan_view, workflow_views
from jellybean_agent.process.metrics import AgentCollector
from jellybean_agent.worker.counters import WorkerCounters
from jellybean_solver import to_document
from jellybean_solver.model.problem import Link
from tests.support.paths import EXAMPLES
from tests.support.tiny_models import make_plan

LABELS = 'operator="double",variant="only",worker="edge-1"'
DONE, BUSY = f"jellybean_requests_total{{{LABELS}}}", f"jellybean_busy_seconds_total{{{LABELS}}}"
SENT = 'jellybean_link_bytes_total{operator="double",tier="edge",to_tier="cloud",variant="only",worker="edge-1"}'
STARTED = 'jellybean_started_timestamp_seconds{worker="edge-1"}'
SINCE = 'jellybean_counted_since_timestamp_seconds{worker="edge-1"}'
MIB_PER_S = 2.0**20


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> PlanView:
    operators = {"double": (["x"], "0" * 64), "triple": (["double"], "0" * 64)}
    links = [Link("edge", "cloud", 0.5, MIB_PER_S, 0.0)]
    routes = [(1.0, {"double": "edge-1", "triple": "cloud-1"})]
    return plan_view(make_plan(tmp_path_factory.mktemp("p"), operators, routes, sources={"x": "edge"}, links=links))


class Reader:
    """Reads what edge-1 states, at times of the test's own."""

    def __init__(self, view: PlanView) -> None:
        self.metrics = StatedMetrics(view, view.workers["edge-1"])
        self.refused: dict[str, int] = {}

    def read(self, text: str | bytes, at_s: float = 0.0, asked_s: float | None = None) -> dict[str, float]:
        """Series -> accepted value."""
        data = text if isinstance(text, bytes) else text.encode()
        accepted, refused = self.metrics.checked(data, at_s if asked_s is None else asked_s, at_s)
        self.refused = {kind: count for kind, (count, _) in refused.items()}
        lines = [line for line in accepted.decode().splitlines() if not line.startswith("#")]
        return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def test_what_an_agent_states_is_all_taken(view: PlanView) -> None:
    """Of a worker that has not loaded its models; what one states that runs is compared in the agent's tests."""
    counters = WorkerCounters(["double"])
    text = metrics_text(AgentCollector(view, view.workers["edge-1"], counters, lambda: None))
    reader = Reader(view)
    found = reader.read(text)
    assert not reader.refused
    assert len(found) == sum(not line.startswith(b"#") for line in text.splitlines()) > 4
    again = StatedMetrics(view, view.workers["edge-1"]).checked(text, 0.0, 0.0)[0]
    families = {family.name: family.type for family in text_string_to_metric_families(text.decode())}
    assert {family.name: family.type for family in text_string_to_metric_families(again.decode())} == families


@pytest.mark.parametrize(
    "line",
    [
        DONE.replace("edge-1", "cloud-1") + " 1",
        DONE.replace("double", "triple") + " 1",
        DONE.replace("double", "nothing") + " 1",
        DONE.replace("only", "other") + " 1",
        DONE.replace("edge-1", 'edge-1\\",worker=\\"cloud-1') + " 1",
        DONE.replace('"edge-1"', '"edge-1",worker="cloud-1"') + " 1",
        DONE.replace('"edge-1"', '"cloud-1",worker="edge-1"') + " 1",
        DONE.replace(",variant", ",extra='',variant") + " 1",
        DONE.replace('variant="only",', "") + " 1",
        SENT.replace('tier="edge"', 'tier="cloud"') + " 1",
        SENT.replace('to_tier="cloud"', 'to_tier="moon"') + " 1",
        DONE + " NaN",
        DONE + " -1",
        DONE + " +Inf",
        DONE + " 1e308",
        DONE + " 1e999",
        DONE + " one",
        DONE + " 1 1700000000",
        DONE + " " + "9" * 400,
        DONE,
        "jellybean_requests_total 1",
        'jellybean_certificate_lifetime_seconds{process="gateway"} 1',
        'jellybean_refused_claims_total{sender="a person",worker="edge-1"} 1',
        f'jellybean_runs_total{{batch="1e9",{LABELS}}} 1',
        f'jellybean_asked_total{{outcome="done",{LABELS}}} 1',
    ],
)
def test_a_line_beyond_it_is_left_out_and_no_other(view: PlanView, line: str) -> None:
    reader = Reader(view)
    found = reader.read(f"{BUSY} 1.5\n{line}\n{SENT} 2\n")
    assert found == {BUSY: 1.5, SENT: 2.0}
    assert sum(reader.refused.values()) == 1


def test_what_a_later_version_states_is_no_lie(view: PlanView) -> None:
    reader = Reader(view)
    later = f"jellybean_news_total{{{LABELS}}} 1\njellybean_requests{{{LABELS}}} 1\n"
    assert reader.read(f"{later}{DONE} 1\n") == {DONE: 1.0}
    assert not reader.refused


def test_a_series_that_comes_twice_counts_once(view: PlanView) -> None:
    reader = Reader(view)
    other = 'jellybean_requests_total{worker="edge-1",variant="only",operator="double",}'
    assert reader.read(f"{DONE} 1\n{DONE} 1e5\n{other} 1e5\n") == {DONE: 1.0}
    assert sum(reader.refused.values()) == 2


def test_a_counter_grows_as_fast_as_its_link_and_no_faster(view: PlanView) -> None:
    reader, per_s = Reader(view), ALLOWANCE * MIB_PER_S
    assert reader.read(f"{SENT} 100") == {SENT: 100.0}
    at_once = 100 + QUEUED_BYTES + 10 * per_s
    assert reader.read(f"{SENT} {at_once}", 10.0) == {SENT: at_once}  # a queue, and ten seconds
    assert not reader.refused
    burst = at_once + 100 * per_s
    assert reader.read(f"{SENT} {burst}", 20.0) == {SENT: at_once + 10 * per_s}
    assert list(reader.refused) == ["counts more than time and link allow"]
    assert reader.read(f"{SENT} {burst}", 109.0) == {SENT: burst - per_s}  # it is counted as the link can carry it
    assert reader.read(f"{SENT} {burst}", 110.0) == {SENT: burst}
    assert not reader.refused


def test_growth_that_is_absurd_is_never_counted(view: PlanView) -> None:
    reader = Reader(view)
    reader.read(f"{SENT} 100")
    assert reader.read(f"{SENT} 1e14", 10.0) == {SENT: 100.0}
    assert sum(reader.refused.values()) == 1
    assert reader.read(f"{SENT} 1e14", 1e6) == {SENT: 100.0}
    assert reader.read(f"{SENT} {1e14 + 50}", 2e6) == {SENT: 150.0}
    assert not reader.refused


@pytest.mark.parametrize(("series", "growth"), [(DONE, COUNTS), (BUSY, RUNNING_S)])
def test_runs_take_time(view: PlanView, series: str, growth: stated_metrics.Growth) -> None:
    reader = Reader(view)
    reader.read(f"{series} 0")
    most = growth.within(5.0)
    assert reader.read(f"{series} {most * 1.1}", 5.0) == {series: most}
    assert reader.read(f"{series} {most * 1.1}", 60.0) == {series: pytest.approx(most * 1.1)}


def test_a_counter_does_not_decrease_while_its_process_lives(view: PlanView) -> None:
    reader = Reader(view)
    reader.read(f"{STARTED} 10\n{SINCE} 5\n{DONE} 100")
    assert reader.read(f"{STARTED} 10\n{SINCE} 5\n{DONE} 90", 1.0)[DONE] == 100.0
    assert list(reader.refused) == ["states counters that decrease"]
    assert reader.read(f"{STARTED} 20\n{SINCE} 5\n{DONE} 90", 2.0)[DONE] == 90.0  # the machine lost its power
    assert not reader.refused


def test_readings_that_overlap_are_no_lie(view: PlanView) -> None:
    reader = Reader(view)
    reader.read(f"{DONE} 100", 5.0, asked_s=1.0)
    assert reader.read(f"{DONE} 99", 6.0, asked_s=2.0) == {DONE: 100.0}
    assert not reader.refused


def test_a_counter_that_begins_again_and_again_is_counted_each_time(view: PlanView) -> None:
    """Else whoever says so at each reading is paid for the whole of it again."""
    reader, taken = Reader(view), 0.0
    for second in range(100):
        found = reader.read(f"{SINCE} {second}\n{SENT} {QUEUED_BYTES}", float(second))
        taken += found[SENT]  # as the ledger counts a counter that began anew
    assert taken <= 2 * QUEUED_BYTES + 100 * ALLOWANCE * MIB_PER_S


BYTES = st.one_of(st.floats(0.0, 2.0**32), st.floats(0.0, 1e18))
MARKS = st.tuples(st.sampled_from([None, 1, 1, 2]), st.sampled_from([1, 1, 2]))
READINGS = st.lists(st.tuples(st.floats(0.0, 30.0), BYTES, MARKS), min_size=1, max_size=20)


@given(READINGS)
def test_whatever_a_worker_counts_it_is_paid_for_what_its_link_carries(
    view: PlanView, readings: list[tuple[float, float, tuple[int | None, int]]]
) -> None:
    """By the ledger's own rule of what a counter has grown by, whenever it or its process says that it began anew."""
    reader, at_s, paid = Reader(view), 0.0, 0.0
    key, last = SentKey("p", "double", "only", "edge-1", "edge", "cloud"), dict[SentKey, Sent]()
    for seconds, value, (since, started) in readings:
        at_s += seconds
        marks = f"{STARTED} {started}\n" + ("" if since is None else f"{SINCE} {since}\n")
        found = reader.read(f"{marks}{SENT} {value!r}", at_s).get(SENT)
        now = {} if found is None else {key: Sent(found, "" if since is None else str(since))}
        before, after = (Reading(Moment(at_s, at_s, "b"), "r", (), "p", sent=one) for one in (last, now))
        if last:
            paid += sum(line.sent_bytes for line in interval(before, after).sent)
        last = {**last, **now}
    assert paid <= 1.0001 * (QUEUED_BYTES + ALLOWANCE * MIB_PER_S * at_s)


def test_texts_and_series_have_an_end(view: PlanView) -> None:
    reader = Reader(view)
    assert reader.read(f"{DONE} 1\n".encode() + b"#" * MAX_TEXT_BYTES) == {}
    assert sum(reader.refused.values()) == 1
    reader.metrics = StatedMetrics(view, view.workers["edge-1"], max_series=20)
    runs = "\n".join(f'jellybean_runs_total{{batch="{size}",{LABELS}}} 1' for size in range(30))
    assert len(reader.read(runs)) == 20
    assert sum(reader.refused.values()) == 10


@pytest.fixture(scope="module")
def two_workflows() -> dict[str, Any]:
    """A plan with workers that both workflows use."""
    return to_document(require_plan(plan_project(load_any_project(EXAMPLES / "two-workflows"))))


def both(document: dict[str, Any]) -> Iterator[tuple[PlanView, WorkerView]]:
    """Each workflow's view, with each of its workers."""
    for view in workflow_views(document).values():
        yield from ((view, worker) for worker in view.serving)


def test_of_several_workflows_each_takes_what_a_worker_runs(two_workflows: dict[str, Any]) -> None:
    whole = plan_view(two_workflows)
    shared = False
    for view, worker in both(two_workflows):
        entry = whole.workers[worker.name]
        counters = WorkerCounters(list(entry.operators))
        text = metrics_text(AgentCollector(whole.seen_by(entry.name), entry, counters, lambda: None))
        others = next(name for name in whole.workers if name != entry.name)
        text += f'jellybean_refused_claims_total{{sender="{others}",worker="{entry.name}"}} 1\n'.encode()
        accepted, refused = StatedMetrics(view, worker).checked(text, 0.0, 0.0)
        assert not refused
        assert all(f'operator="{name}"'.encode() in accepted for name in entry.operators)
        shared |= len(entry.operators) > len(worker.operators)
    assert shared, "a worker runs operators of the other workflow too"


def test_of_several_workflows_no_series_is_of_what_a_worker_does_not_run(two_workflows: dict[str, Any]) -> None:
    whole = plan_view(two_workflows)
    for view, worker in both(two_workflows):
        runs = whole.workers[worker.name].operators
        known = {name: whole.operators[name].variant for name in whole.operators}
        names = [*(name for name in known if name not in runs), "no/such", "x" * 100_000, f"{view.workflow}/none"]
        pairs = [(name, known.get(name, "small")) for name in names] + [(name, "no-such-variant") for name in runs]
        lines = [
            f'jellybean_requests_total{{operator="{name}",variant="{variant}",worker="{worker.name}"}} 1\n'
            for name, variant in pairs
        ]
        accepted, refused = StatedMetrics(view, worker).checked("".join(lines).encode(), 0.0, 0.0)
        assert accepted == b""
        assert sum(count for count, _ in refused.values()) == len(lines)


LINES = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda name, labels, value: f"{name}{{{labels}}} {value}".encode(),
        st.sampled_from([*WORKER_FAMILIES, *(f"{name}_total" for name in WORKER_FAMILIES)]),
        st.one_of(
            st.text(max_size=40),
            st.sampled_from([LABELS, LABELS + ",", 'worker="edge-1"', 'worker="cloud-1"']),
        ),
        st.one_of(st.floats().map(str), st.text(max_size=8)),
    ),
)


@given(st.lists(LINES, max_size=12))
def test_whatever_it_states_the_rest_can_be_read(view: PlanView, lines: list[bytes]) -> None:
    accepted, _ = StatedMetrics(view, view.workers["edge-1"]).checked(b"\n".join(lines), 0.0, 0.0)
    for family in text_string_to_metric_families(accepted.decode()):
        for sample in family.samples:
            assert sample.labels.get("worker", sample.labels.get("process")) == "edge-1"
            assert 0.0 <= sample.value < math.inf
