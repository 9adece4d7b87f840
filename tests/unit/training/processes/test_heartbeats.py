"""Heartbeats of ranks. Checks are counted, not timed, so the tests do not depend on speed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from torch.utils.data import default_collate

from jellybean.training.data.batches import MapBatches, RowFormat, StreamBatches
from jellybean.training.processes.heartbeats import CHECKS_PER_TIMEOUT, BeatFiles, Heartbeats, place_of_rank


@pytest.fixture(params=["store", "files"])
def pair(request, tmp_path):
    store = torch.distributed.HashStore() if request.param == "store" else BeatFiles(tmp_path, 2.0)
    beats = [Heartbeats(store, rank, 2, 2.0) for rank in range(2)]
    for rank in beats:
        rank.beat()
    return beats


def _looks(pair, *, tells=(0, 1), steps=(), times=CHECKS_PER_TIMEOUT):
    """Rank 0's result after so many checks; all earlier ones must be empty."""
    found = []
    for _ in range(times):
        for rank in steps:
            pair[rank].step()
        for rank in tells:
            pair[rank].beat()
        found.append(pair[0].check())
    assert not any(found[:-1])
    return found[-1]


def test_active_ranks_continue(pair):
    assert _looks(pair, steps=(0, 1), times=5 * CHECKS_PER_TIMEOUT) == ""


def test_a_rank_may_wait_while_another_makes_progress(pair):
    assert _looks(pair, steps=(1,), times=5 * CHECKS_PER_TIMEOUT) == ""


@pytest.mark.parametrize("steps", [(), (0,), (0, 1)])
def test_a_stalled_rank_ends_the_run(pair, steps):
    assert _looks(pair, tells=(0,), steps=steps, times=CHECKS_PER_TIMEOUT + 1) == (
        "rank 1 has not responded for 2 s; if its machine is only slow, raise `timeout`"
    )


def test_a_run_without_progress_ends(pair):
    assert _looks(pair, times=CHECKS_PER_TIMEOUT + 1) == (
        "no rank has made progress for 2 s; if one action takes longer, raise `timeout`"
    )


@pytest.mark.parametrize("place", ["is at /a folder/nets.py:24", "waits for its processes that read rows"])
def test_a_run_without_progress_names_where_ranks_are(pair, place, monkeypatch):
    monkeypatch.setattr("jellybean.training.processes.heartbeats.place_of_rank", lambda: place)
    assert f"no rank has made progress for 2 s: rank 0 {place}, rank 1 {place}; if" in _looks(
        pair, times=CHECKS_PER_TIMEOUT + 1
    )


def test_a_rank_that_reads_one_row_ends_the_run_though_it_is_busy(pair, monkeypatch):
    numbers = iter(range(10**6))
    place = "jellybean.training.processes.heartbeats.place_of_rank"
    with pair[1].busy("loading the data"):
        monkeypatch.setattr(place, lambda: f"reads row {next(numbers)} at nets.py:24")
        assert _looks(pair, times=3 * CHECKS_PER_TIMEOUT) == ""
        monkeypatch.setattr(place, lambda: "reads row 40 at nets.py:24")
        assert _looks(pair, times=CHECKS_PER_TIMEOUT + 1) == (
            "rank 0 reads row 40 at nets.py:24 for 2 s; if a row takes longer, raise `timeout`"
        )


def test_the_place_of_a_rank_is_the_users_line():
    """Called by this package, at any depth; a caller of the package is none."""
    places = []
    rows = MapBatches(_Rows(places), RowFormat("nets.py:data", "train", targets=False, collate=default_collate), 0)
    rows.example([0])
    assert places == [f"reads row 0 at {__file__}:{_Rows.__getitem__.__code__.co_firstlineno + 1}"]
    assert place_of_rank() == ""
    stream = StreamBatches(lambda epoch: map(_Rows(places).__getitem__, range(3)), rows._form, (0, 0), [range(2, 3)], 3)
    stream.example()
    assert [place.split(" at ")[0] for place in places[1:]] == ["reads row 0", "reads row 1", "reads row 2"]


class _Rows:
    def __init__(self, places):
        self.places = places

    def __getitem__(self, number):
        self.places.append(place_of_rank())
        return torch.ones(2)


def test_a_busy_rank_has_no_timeout_while_it_lives(pair):
    with pair[1].busy("measuring the test rows"):
        assert _looks(pair, times=5 * CHECKS_PER_TIMEOUT) == ""
        pair[1].beat()
    assert _looks(pair, times=1) == ""
    assert "no rank has made progress" in _looks(pair, times=CHECKS_PER_TIMEOUT)


def test_a_busy_rank_that_stalls_ends_the_run(pair):
    with pair[1].busy("profiling"):
        pair[1].beat()
        assert "rank 1 has not responded" in _looks(pair, tells=(0,), times=CHECKS_PER_TIMEOUT + 1)


def test_ended_ranks_are_ignored(pair):
    pair[1].start(lambda error: None)
    pair[1].close()
    assert _looks(pair, tells=(0,), times=5 * CHECKS_PER_TIMEOUT) == ""


def test_a_rank_that_never_started_is_missed(tmp_path):
    beats = Heartbeats(BeatFiles(tmp_path, 0.01), 0, 2, 2.0)
    beats.beat()
    with pytest.raises(RuntimeError, match=r"beat-1 was not written within 0\.01 s"):
        beats.check()


def test_a_folder_that_is_gone_is_a_store_that_is_gone(tmp_path):
    beats = Heartbeats(BeatFiles(tmp_path / "gone", 0.01), 0, 1, 2.0)
    with pytest.raises(RuntimeError, match="beat-0 cannot be written"):
        beats.beat()
