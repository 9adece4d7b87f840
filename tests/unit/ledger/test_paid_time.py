"""Time that was paid for counts once, however many workflows a gateway served then."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.ledger import Ledger, Span, compact, served_seconds, timeline
from jellybean.ledger.queries.paid_time import paid_seconds
from tests.support.made_up_run import BEGIN_S, PLAN, Serving


def test_time_that_an_earlier_interval_has_is_not_counted_again() -> None:
    one_after_the_other = [(0.0, 10.0, 10.0), (10.0, 20.0, 9.0), (30.0, 40.0, 10.0)]
    assert list(paid_seconds(one_after_the_other)) == [(0.0, 10.0), (10.0, 9.0), (30.0, 10.0)]
    staggered = [(0.0, 10.0, 10.0), (1.0, 11.0, 10.0), (10.0, 20.0, 10.0), (11.0, 21.0, 10.0)]
    assert [seconds for _, seconds in paid_seconds(staggered)] == pytest.approx([10.0, 1.0, 9.0, 1.0])
    assert list(paid_seconds([(5.0, 5.0, 10.0)])) == [(5.0, 10.0)]  # the clock was set back


@pytest.mark.parametrize("is_compact", [False, True], ids=["as written", "compacted"])
def test_two_workflows_of_one_gateway_are_paid_at_the_same_time(tmp_path: Path, is_compact: bool) -> None:
    gateways = [Ledger(str(tmp_path / "ledger.db"), name) for name in ("shop", "yard")]
    for number in range(61):
        for ledger in gateways:
            ledger.write(Serving().read(number * 10.0))
    if is_compact:
        compact(gateways[0], BEGIN_S + 86_400.0)
    assert served_seconds(gateways[0], Span()) == {PLAN.hash: pytest.approx(600.0)}
    assert sum(point.paid_s for point in timeline(gateways[0], 60)) == pytest.approx(600.0)
    for ledger in gateways:
        ledger.close()
