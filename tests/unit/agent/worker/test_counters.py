"""Counters of a worker that outlive its process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from jellybean_agent import LiveCounters, RunOperator
from jellybean_agent.brain.messages import WorkItem
from jellybean_agent.errors import CountersError
from jellybean_agent.worker.counters import MAX_ROWS, WorkerCounters, kept_if_possible
from jellybean_agent.worker.run_outputs import RunDone, TensorOutputs
from tests.support.waiting import wait_until_async


def run(requests: Sequence[str]) -> RunOperator:
    items = tuple(WorkItem(number, name, 0, (), (np.zeros(1),)) for number, name in enumerate(requests))
    return RunOperator(1, "double", items)


def kept(counters: WorkerCounters) -> tuple[object, ...]:
    return counters.completed, counters.failed, counters.busy_s, counters.link_bytes, counters.since_unix_s


def test_a_new_process_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    first = WorkerCounters(["double", "triple"], tmp_path / "counters", "plan")
    first.run_done(run("ab"), RunDone([TensorOutputs({}), TensorOutputs({})], [2], 0.25, 0.0))
    first.run_failed(run("c"))
    first.sent("double", "cloud", 16)
    first.sent("double", "cloud", 16)
    with pytest.raises(CountersError, match="another process counts there"):
        WorkerCounters(["double"], tmp_path / "counters", "plan")
    first.close()
    again = WorkerCounters(["double", "triple"], tmp_path / "counters", "plan")
    assert kept(again) == kept(first)
    assert again.completed == {"double": 2, "triple": 0}
    again.run_done(run("d"), RunDone([TensorOutputs({})], [1], 0.25, 0.0))
    again.sent("double", "cloud", 8)
    again.close()
    third = WorkerCounters(["double", "triple"], tmp_path / "counters", "plan")
    assert (third.completed["double"], third.failed["double"], third.busy_s["double"]) == (3, 1, 0.5)
    assert third.link_bytes == {("double", "cloud"): 40}
    third.close()


def test_another_plan_counts_from_nothing(tmp_path: Path) -> None:
    first = WorkerCounters(["double"], tmp_path / "counters", "plan")
    first.run_done(run("a"), RunDone([TensorOutputs({})], [1], 0.25, 0.0))
    first.close()
    other = WorkerCounters(["double"], tmp_path / "counters", "other")
    assert other.completed == {"double": 0}
    assert other.since_unix_s > first.since_unix_s
    other.close()
    assert [path.name for path in tmp_path.iterdir()] == ["counters-other"]


def test_what_there_is_no_row_for_is_counted_but_not_kept(tmp_path: Path) -> None:
    names = [f"o{number}" for number in range(MAX_ROWS)]
    for _ in range(2):
        counters = WorkerCounters(names, tmp_path / "counters")
        for name in names:
            counters.failed[name] += 1
            counters._keep(name)
        counters.close()
    assert counters.failed["o0"] == 2
    assert counters.failed[names[-1]] == 1


def test_without_a_usable_file_it_counts_all_the_same_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counters = kept_if_possible(["double"], tmp_path / "no folder" / "counters", "plan")
    counters.run_done(run("a"), RunDone([TensorOutputs({})], [1], 0.25, 0.0))
    counters.close()
    assert counters.completed == {"double": 1}
    assert "nothing can be counted there: if this process is killed, the ledger misses" in caplog.text


def test_kept_counters_are_written_to_the_disk_where_something_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    counters = WorkerCounters(["double"], tmp_path / "counters", "plan")
    monkeypatch.setattr(LiveCounters, "sync", lambda self: synced.append(counters.completed["double"]))

    async def watch() -> None:
        task = asyncio.create_task(counters.keep_synced(0.001))
        await wait_until_async(lambda: synced == [0])
        counters.completed["double"] = 7
        await wait_until_async(lambda: synced == [0, 7])
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(watch())
    assert synced == [0, 7]
    counters.close()
