"""What one interval is: counters' differences, and the cost at the prices in force."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jellybean.ledger import (
    COLUMNS,
    KINDS,
    RECEIVED,
    BilledPlan,
    BilledWorker,
    Moment,
    Reading,
    RequestKey,
    Sent,
    SentKey,
    Work,
    WorkKey,
    apportioned,
    apportioned_table,
    decimals_for,
)
from jellybean.ledger.lines import interval
from jellybean.ledger.reading_document import reading_from_text, reading_to_text
from jellybean.ledger.readings import COUNTS, Growth

BOX = BilledWorker("box", "edge", "", 3.6, {"detect": 0.2, "read": 0.6}, {"detect": "small", "read": "big"})
SHOP = BilledWorker("shop-2/pc", "shop", "shop-2", 7.2, {"detect": 0.5}, {"detect": "small"})
PLAN = BilledPlan("p1", "flow", (BOX, SHOP), {("edge", "cloud"): 10.0})
DETECT, READ = WorkKey("p1", "detect", "small", "box"), WorkKey("p1", "read", "big", "box")
CROPS = SentKey("p1", "detect", "small", "box", "edge", "cloud")
ANN, BOB = RequestKey("flow", "ann"), RequestKey("flow", "bob")


def counts(received: int, answered: int) -> tuple[int, ...]:
    row = [0] * COLUMNS
    row[RECEIVED], row[KINDS["answered"]] = received, answered
    return tuple(row)


def reading(unix_s: float, boot_s: float, **more: object) -> Reading:
    base = Reading(Moment(unix_s, boot_s, "boot"), "run", (PLAN,), "p1", counted="file")
    return replace(base, **more)


def test_an_interval_costs_its_time_and_bytes() -> None:
    before = reading(
        1000.0, 50.0,
        work={DETECT: Work(10, 1, 2.0, "s"), READ: Work(5, 0, 8.0, "s")}, sent={CROPS: Sent(2.0**30, "s")},
        requests={ANN: counts(7, 6)},
    )  # fmt: skip
    now = reading(
        1100.0, 150.0,
        work={DETECT: Work(30, 2, 12.0, "s"), READ: Work(9, 0, 38.0, "s")}, sent={CROPS: Sent(1.5 * 2.0**30, "s")},
        requests={ANN: counts(10, 9), BOB: counts(1, 0)},
    )  # fmt: skip
    found = interval(before, now)
    assert (found.begin_unix_s, found.end_unix_s, found.seconds) == (1000.0, 1100.0, 100.0)
    work = {(line.key.worker, line.key.operator): line for line in found.work}
    assert [(work["box", name].completed, work["box", name].failed) for name in ("detect", "read")] == [(20, 1), (4, 0)]
    assert work["box", "detect"].usd == pytest.approx(0.1 * 10 / 40)  # 100 s at 3.6 USD/h, by the time that they ran
    assert work["box", "read"].usd == pytest.approx(0.1 * 30 / 40)
    assert (work["shop-2/pc", "detect"].usd, work["shop-2/pc", "detect"].site) == (pytest.approx(0.2), "shop-2")
    ((sent),) = found.sent
    assert (sent.sent_bytes, sent.usd) == (2.0**29, 5.0)
    assert found.workers_usd + found.links_usd == pytest.approx(5.3)
    requests = {line.key.client: line for line in found.requests}
    assert requests["ann"].usd == pytest.approx(5.3 * 3 / 4)
    assert requests["bob"].usd == pytest.approx(5.3 / 4)
    assert requests["ann"].counts[KINDS["answered"]] == 3


def test_where_nothing_ran_the_planned_load_divides_and_the_cost_is_nobodys() -> None:
    found = interval(reading(0.0, 0.0), reading(36.0, 36.0))
    assert {line.key.operator: line.usd for line in found.work if line.key.worker == "box"} == {
        "detect": pytest.approx(0.036 * 0.25),
        "read": pytest.approx(0.036 * 0.75),
    }
    ((nobody),) = found.requests
    assert (nobody.key, nobody.usd, sum(nobody.counts)) == (RequestKey("flow", ""), pytest.approx(0.108), 0)


def test_a_worker_that_was_started_again_counts_from_zero() -> None:
    before = reading(0.0, 0.0, work={DETECT: Work(100, 0, 9.0, "first")}, sent={CROPS: Sent(4.0, "first")})
    later = reading(10.0, 10.0, work={DETECT: Work(150, 0, 12.0, "second")}, sent={CROPS: Sent(6.0, "second")})
    found = interval(before, later)
    (detect,) = [line for line in found.work if line.key == DETECT]
    assert (detect.completed, detect.busy_s, found.sent[0].sent_bytes) == (150, 12.0, 6.0)


@pytest.mark.parametrize(("step_s", "seconds"), [(3600.0, 10.0), (-3600.0, 10.0), (0.0, 10.0)])
def test_a_clock_that_is_set_costs_nothing(step_s: float, seconds: float) -> None:
    found = interval(reading(1e6, 100.0), reading(1e6 + step_s + seconds, 100.0 + seconds))
    assert found.seconds == seconds
    assert (found.begin_unix_s, found.end_unix_s) == (1e6 + step_s, 1e6 + step_s + seconds)


def test_between_two_runs_nothing_costs_but_what_was_counted_is_there() -> None:
    before = reading(0.0, 0.0, requests={ANN: counts(4, 3)})
    now = replace(reading(500.0, 500.0, requests={ANN: counts(6, 5)}), run="next")
    found = interval(before, now)
    assert (found.run, found.seconds, found.workers_usd, found.links_usd) == ("run", 0.0, 0.0, 0.0)
    assert [line.counts[RECEIVED] for line in found.requests] == [2]


def test_another_file_of_counters_begins_at_zero() -> None:
    before = reading(0.0, 0.0, requests={ANN: counts(40, 30)})
    now = reading(10.0, 10.0, requests={ANN: counts(50, 50)}, counted="new file")
    assert [line.counts[RECEIVED] for line in interval(before, now).requests] == [50]


def test_a_reading_is_the_same_after_it_was_written() -> None:
    given_ = reading(
        1.5, 2.5, work={DETECT: Work(1, 2, 3.5, "s")}, sent={CROPS: Sent(4.0, "s")}, requests={BOB: counts(5, 1)}
    )
    assert reading_from_text(reading_to_text(given_)) == given_


@given(st.lists(st.floats(0, 1e4), max_size=20), st.integers(0, 6))
def test_rounded_amounts_sum_to_the_rounded_sum(amounts: list[float], decimals: int) -> None:
    units = apportioned(amounts, decimals)
    assert abs(sum(units) - sum(amounts) * 10**decimals) <= 0.5 + 1e-3
    assert all(abs(unit - amount * 10**decimals) <= 1 + 1e-3 for unit, amount in zip(units, amounts, strict=True))


@given(st.lists(st.tuples(st.integers(0, 9_999), st.integers(0, 9_999)), min_size=1, max_size=20), st.randoms())
def test_other_divisions_of_a_cost_have_the_same_sums(rows: list[tuple[int, int]], random: Random) -> None:
    amounts = [(workers / 2000, traffic / 2000) for workers, traffic in rows]  # many are halves of the last decimal
    by_row = apportioned_table(amounts, 3)
    sums = [sum(column) for column in zip(*by_row, strict=True)]
    in_one = apportioned_table([[math.fsum(column) for column in zip(*amounts, strict=True)]], 3)
    shuffled = apportioned_table(random.sample(amounts, len(amounts)), 3)
    assert in_one == [sums]
    assert [sum(column) for column in zip(*shuffled, strict=True)] == sums
    for units, row in zip(by_row, amounts, strict=True):
        assert all(abs(unit - 1000 * amount) < 1 + 1e-3 for unit, amount in zip(units, row, strict=True))


@pytest.mark.parametrize(("count", "total"), [(3, 2), (4, 2), (3, 3)])
def test_amounts_just_below_whole_units_have_any_sum_that_is_asked_for(count: int, total: int) -> None:
    units = apportioned([1 - 5e-7] * count, 0, total)
    assert sum(units) == total and set(units) <= {0, 1}


def test_small_totals_have_more_decimals() -> None:
    assert [decimals_for(total) for total in (0.0, 1234.5, 12.3, 1.0, 0.012, 1e-12)] == [2, 2, 2, 3, 5, 9]


def test_counters_that_lost_their_last_seconds_are_not_counted_again() -> None:
    """A box without power writes some pages no more: its file goes on below what was read of it."""
    before = reading(0.0, 0.0, work={DETECT: Work(1000, 3, 50.0, "s")}, sent={CROPS: Sent(800.0, "s")})
    back = reading(60.0, 60.0, work={DETECT: Work(990, 3, 49.0, "s")}, sent={CROPS: Sent(790.0, "s")})
    later = reading(70.0, 70.0, work={DETECT: Work(1005, 3, 51.0, "s")}, sent={CROPS: Sent(805.0, "s")})
    done = [sum(line.completed for line in interval(one, other).work) for one, other in ((before, back), (back, later))]
    assert done == [0, 15]
    assert [line.sent_bytes for line in interval(before, back).sent] == []
    assert [line.sent_bytes for line in interval(back, later).sent] == [15.0]
    again = reading(60.0, 60.0, work={DETECT: Work(990, 3, 49.0, "another")})
    assert sum(line.completed for line in interval(before, again).work) == 990
    lost = interval(reading(0.0, 0.0, requests={ANN: counts(10, 9)}), reading(9.0, 9.0, requests={ANN: counts(8, 9)}))
    assert all(min(line.counts) >= 0 for line in lost.requests)


def test_what_nobody_has_read_before_is_not_billed_at_once() -> None:
    """A counter that this process reads for the first time, and that has grown by more than time and link allow."""
    before, after = reading(1000.0, 50.0), reading(1010.0, 60.0)
    at_once = {DETECT: Work(10, 0, 5.0, "s"), READ: Work(5, 0, 1e4, "s")}
    most = {DETECT: COUNTS, READ: COUNTS, CROPS: Growth(1000.0, 10.0)}
    for count, billed in ((1100.0, [1100.0]), (1101.0, []), (1e18, [])):
        now = replace(after, work=at_once, sent={CROPS: Sent(count, "s")}, newly_read=most)
        found = interval(before, now)
        assert [line.sent_bytes for line in found.sent] == billed
        assert {line.key: line.completed for line in found.work if line.key in at_once} == {DETECT: 10, READ: 0}
    later = replace(after, at=Moment(1020.0, 70.0, "boot"), sent={CROPS: Sent(1e18 + 2.0**20, "s")})
    (line,) = interval(now, later).sent
    assert line.sent_bytes == 2.0**20, "from its first reading on it is billed as any"
    known = interval(replace(before, sent={CROPS: Sent(1e18, "s")}), replace(now, sent={CROPS: Sent(1e18 + 500, "s")}))
    assert [line.sent_bytes for line in known.sent] == [512.0], "a gateway that starts again goes on where it ended"
    with_many = replace(after, work={DETECT: Work(1e15, 0, 1.0, "s")}, newly_read=most)
    assert all(not line.completed for line in interval(before, with_many).work)
