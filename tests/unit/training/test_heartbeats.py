"""Ranks tell that they live and get on. Looks are counted, not timed: nothing here depends on how fast anything is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.processes.heartbeats import CHECKS_PER_TIMEOUT, Heartbeats  # noqa: E402


@pytest.fixture
def pair():
    store = torch.distributed.HashStore()
    beats = [Heartbeats(store, rank, 2, 2.0) for rank in range(2)]
    for rank in beats:
        rank.beat()
    return beats


def _looks(pair, *, tells=(0, 1), steps=(), times=CHECKS_PER_TIMEOUT):
    """What rank 0 finds in the end, and whether it was the first time."""
    found = []
    for _ in range(times):
        for rank in steps:
            pair[rank].step()
        for rank in tells:
            pair[rank].beat()
        found.append(pair[0].check())
    assert not any(found[:-1])
    return found[-1]


def test_ranks_that_get_on_go_on(pair):
    assert _looks(pair, steps=(0, 1), times=5 * CHECKS_PER_TIMEOUT) == ""


def test_one_may_wait_for_the_other_as_long_as_that_gets_on(pair):
    assert _looks(pair, steps=(1,), times=5 * CHECKS_PER_TIMEOUT) == ""


@pytest.mark.parametrize("steps", [(), (0,), (0, 1)])
def test_a_rank_that_stands_still_ends_the_run(pair, steps):
    assert _looks(pair, tells=(0,), steps=steps, times=CHECKS_PER_TIMEOUT + 1) == (
        "rank 1 has not responded for 2 s; if its machine is only slow, raise `timeout`"
    )


def test_a_run_in_which_nobody_does_anything_ends(pair):
    assert _looks(pair, times=CHECKS_PER_TIMEOUT + 1) == (
        "no rank has made progress for 2 s; if one action takes longer, raise `timeout`"
    )


def test_a_busy_rank_is_waited_for_as_long_as_it_lives(pair):
    with pair[1].busy("measuring the test rows"):
        assert _looks(pair, times=5 * CHECKS_PER_TIMEOUT) == ""
        pair[1].beat()
    assert _looks(pair, times=1) == ""
    assert "no rank has made progress" in _looks(pair, times=CHECKS_PER_TIMEOUT)


def test_a_busy_rank_that_stands_still_ends_the_run(pair):
    with pair[1].busy("profiling"):
        pair[1].beat()
        assert "rank 1 has not responded" in _looks(pair, tells=(0,), times=CHECKS_PER_TIMEOUT + 1)


def test_who_has_ended_is_not_waited_for(pair):
    pair[1].start(lambda error: None)
    pair[1].close()
    assert _looks(pair, tells=(0,), times=5 * CHECKS_PER_TIMEOUT) == ""
