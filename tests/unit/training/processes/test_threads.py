"""A process computes with its share of the cores that other programs leave free."""

from __future__ import annotations

import os

import psutil
import pytest

from jellybean.training import chosen_threads
from jellybean.training.processes.threads import CORES, THREADS, ThreadChoice, threads_of


@pytest.mark.parametrize(
    ("processes", "cores", "busy", "threads"),
    [
        (1, 2, 0.0, 2),
        (1, 2, 0.4, 2),
        (1, 2, 0.7, 1),
        (1, 2, 2.0, 1),
        (2, 2, 0.0, 1),
        (2, 16, 0.2, 8),
        (3, 16, 5.1, 3),
        (4, 2, 0.0, 1),
    ],
)
def test_free_cores_are_divided_among_the_processes(processes, cores, busy, threads):
    assert ThreadChoice(processes, cores, busy).threads == threads


def test_fewer_threads_than_cores_are_explained():
    assert not ThreadChoice(1, 2, 0.1).note
    assert not ThreadChoice(2, 2, 2.0).note
    assert ThreadChoice(1, 2, 1.64).note == (
        "other programs use 1.6 of 2 cores: torch computes with 1 thread; for another number set OMP_NUM_THREADS"
    )
    assert "torch computes with 2 threads in each process;" in ThreadChoice(4, 16, 7.0).note


def test_the_environment_decides(monkeypatch):
    monkeypatch.setenv(THREADS, "3")
    with chosen_threads(1, pytest.fail):
        assert os.environ[THREADS] == "3"
    monkeypatch.delenv(THREADS)
    with chosen_threads(10**6, pytest.fail):  # too many for more than one thread each, whatever runs here
        assert os.environ[THREADS] == "1"
    assert THREADS not in os.environ


def test_fewer_processes_share_the_same_cores(monkeypatch):
    """A run of two processes that uses one of them computes with both cores; not where the user has set the threads."""
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percpu=False: [0.0] * 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    with chosen_threads(4, pytest.fail):
        assert os.environ[THREADS] == "2"
        assert [threads_of(count) for count in (1, 2, 3, 4, 16)] == [8, 4, 2, 2, 1]
    assert CORES not in os.environ
    monkeypatch.setenv(THREADS, "2")
    with chosen_threads(4, pytest.fail):
        assert threads_of(1) is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity of processes")
@pytest.mark.parametrize(("use", "threads"), [([0.0, 0.0, 100.0, 90.0], 2), ([100.0, 0.0, 0.0, 0.0], 1)])
def test_only_the_cores_that_this_process_may_run_on_count(monkeypatch, use, threads):
    """Of a machine with four, two are in the affinity set."""

    def cpu_percent(interval, percpu=False):
        return use if percpu else sum(use) / len(use)

    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(os, "cpu_count", lambda: len(use))
    monkeypatch.setattr(psutil, "cpu_percent", cpu_percent)
    notes: list[str] = []
    with chosen_threads(1, notes.append):
        assert os.environ[THREADS] == str(threads)
    assert [note.partition(":")[0] for note in notes] == ["other programs use 1.0 of 2 cores"] * (threads == 1)
