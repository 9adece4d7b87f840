"""How far the search of a schedule is, as `train` says while it lasts."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.choice.candidates import Candidate
from jellybean.training.choice.decide import SearchProgress
from jellybean.training.choice.search import Search, SearchLimits

CANDIDATES = [Candidate(1, 1, 4, "gpipe"), Candidate(2, 1, 4, "1f1b")]


@pytest.mark.parametrize(("spent_s", "left_s"), [(1.0, 27), (12.0, 16), (60.0, 8)])
def test_the_time_left_is_that_of_the_search_and_the_race(spent_s: float, left_s: int) -> None:
    now_s, told = [0.0], list[str]()
    progress = SearchProgress(told.append, lambda: now_s[0], every_s=5.0)
    search = Search(CANDIDATES, lambda one, measured: 1.0, SearchLimits(seconds=20.0, race_s=8.0))
    search.record(CANDIDATES[0], 1.0, spent_s, search.measured)
    for now_s[0] in (1.0, 6.0, 7.0):
        progress.tried(search)
    assert told == [f"tried 1 of 2 schedules and splits: at most about {left_s} s left"]
