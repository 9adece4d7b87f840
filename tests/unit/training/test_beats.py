"""Ranks tell that they live and get on. Looks are counted, not timed: nothing here depends on how fast anything is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.processes.heartbeats import LOOKS, Beats  # noqa: E402


@pytest.fixture
def pair():
    store = torch.distributed.HashStore()
    return [Beats(store, rank, 2, 2.0) for rank in range(2)]


def _looks(pair, *, tells=(0, 1), steps=(), times=LOOKS):
    """What rank 0 finds in the end, and whether it was the first time."""
    found = []
    for _ in range(times):
        for rank in steps:
            pair[rank].step()
        for rank in tells:
            pair[rank].tell()
        found.append(pair[0].look())
    assert not any(found[:-1])
    return found[-1]


def test_ranks_that_get_on_go_on(pair):
    assert _looks(pair, steps=(0, 1), times=5 * LOOKS) == ""


def test_one_may_wait_for_the_other_as_long_as_that_gets_on(pair):
    assert _looks(pair, steps=(1,), times=5 * LOOKS) == ""


@pytest.mark.parametrize("steps", [(), (0,), (0, 1)])
def test_a_rank_that_stands_still_ends_the_run(pair, steps):
    assert _looks(pair, tells=(0,), steps=steps, times=LOOKS + 1) == (
        "rank 1 has stood still or been away for 2 s; if its machine is only slow, raise `timeout`"
    )


def test_a_run_in_which_nobody_does_anything_ends(pair):
    assert _looks(pair, times=LOOKS + 1) == (
        "no rank has done anything for 2 s; if one action takes longer, raise `timeout`"
    )


def test_a_busy_rank_is_waited_for_as_long_as_it_lives(pair):
    with pair[1].busy("measuring the test rows"):
        assert _looks(pair, times=5 * LOOKS) == ""
        pair[1].tell()
    assert _looks(pair, times=1) == ""
    assert "no rank has done anything" in _looks(pair, times=LOOKS)


def test_a_busy_rank_that_stands_still_ends_the_run(pair):
    with pair[1].busy("profiling"):
        pair[1].tell()
        assert "rank 1 has stood still" in _looks(pair, tells=(0,), times=LOOKS + 1)


def test_who_has_ended_is_not_waited_for(pair):
    pair[1].start(lambda error: None)
    pair[1].close()
    assert _looks(pair, tells=(0,), times=5 * LOOKS) == ""
