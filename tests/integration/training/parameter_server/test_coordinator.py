"""The first server, spoken to as workers do: running statistics that it averages, and whom its end waits for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training import RankRun
from jellybean.training.parameter_server.channel import Channel, Header
from jellybean.training.parameter_server.coordinator import Coordinator
from jellybean.training.parameter_server.flat_tensors import FlatTensors
from jellybean.training.parameter_server.weights import frozen_of, stage_of
from tests.integration.training.parameter_server.server_run import server_run, two_connections

DOCUMENT = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:data
loss: mse
epochs: 1
batch: 4
replicas: 2
timeout: 20 s
optimizer: {name: sgd, lr: 1}
sync: {way: parameter-server, mode: asp}
"""
NETS = """\
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))

def data():
    rows = torch.ones(8, 3)
    return {"train": (rows, rows[:, :2]), "test": (rows, rows[:, :2])}
"""
RATE = [[{"lr": 0.0}]]  # of an update


class WorkerEnd:
    """A worker's end of a connection."""

    def __init__(self, channel: Channel, run: RankRun, number: int) -> None:
        self.channel, stage = channel, stage_of(run)
        self.weights = FlatTensors(stage.versions.trained)
        self.buffers = FlatTensors(stage.buffers)
        rows = [run.data.train.digest(), run.data.test.digest()]
        channel.send({"kind": "join", "worker": number, "layout": self.weights.layout, "rows": rows})
        channel.receive_into(FlatTensors(frozen_of(stage)).memory, channel.receive())

    def ask(self) -> Header:
        """Ask for work, and take it with weights and running statistics."""
        self.channel.send({"kind": "work"})
        header = self.channel.receive()
        if header["kind"] != "end":
            self.channel.receive_into(self.weights.memory, header)
            if header["buffers"]:
                self.channel.receive_into(self.buffers.memory, self.channel.receive())
        return header

    def push(self, header: Header, statistic: float) -> None:
        """Send a gradient for the work of this header, with running statistics that are all this number."""
        place = {"kind": "push", "iteration": header["iteration"], "number": header["number"]}
        self.channel.send({**place, "loss": 1.0, "computed_s": 0.0, "sent_bytes": 1}, self.weights.memory)
        for value in self.buffers.views.values():
            value.fill_(statistic)
        self.channel.send({"kind": "buffers"}, self.buffers.memory)


@dataclass(frozen=True)
class Ends:
    """A first server and its two workers, and a pool for its side."""

    run: RankRun
    coordinator: Coordinator
    workers: list[WorkerEnd]
    pool: ThreadPoolExecutor


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with server_run(tmp_path, DOCUMENT, NETS, 0) as (document, run), ThreadPoolExecutor() as pool:
        coordinator = Coordinator(run, document, lambda _: None)
        with two_connections(coordinator.serve) as channels:
            workers = [WorkerEnd(channel, run, number) for number, channel in enumerate(channels)]
            coordinator.wait_for_workers()
            yield Ends(run, coordinator, workers, pool)


def test_running_statistics_of_an_earlier_segment_are_not_averaged_again(ends):
    one, other = ends.workers
    mean = stage_of(ends.run).buffers["1.running_mean"]
    segment = ends.pool.submit(ends.coordinator.run_segment, 0, range(2), RATE * 2)
    headers = [worker.ask() for worker in ends.workers]
    one.push(headers[0], 2.0)
    other.push(headers[1], 4.0)
    assert segment.result() == [1.0, 1.0]
    assert mean.tolist() == [3.0, 3.0]
    segment = ends.pool.submit(ends.coordinator.run_segment, 0, range(2, 3), RATE)
    one.push(one.ask(), 8.0)  # the other worker gets no work
    assert segment.result() == [1.0]
    assert mean.tolist() == [8.0, 8.0]


def test_the_end_waits_for_workers_that_are_there_alone(ends):
    """A worker that died and was given up does not come back to hear that the run is over."""
    one, other = ends.workers
    ended = ends.pool.submit(ends.coordinator.end, 20.0)
    assert one.ask()["kind"] == "end"
    other.channel.close()
    assert ended.result()


def test_the_end_waits_for_a_worker_that_computes(ends):
    segment = ends.pool.submit(ends.coordinator.run_segment, 0, range(1), RATE)
    one, other = ends.workers
    one.push(one.ask(), 1.0)
    segment.result()
    other.channel.close()
    assert not ends.coordinator.end(0.2)
    assert one.ask()["kind"] == "end"
    assert ends.coordinator.end(20.0)
