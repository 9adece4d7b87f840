"""The first server, spoken to as workers do: running statistics that it averages, and whom its end waits for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.documents.training import load_training  # noqa: E402
from jellybean.training.parameter_server.channel import Channel, Header, connect  # noqa: E402
from jellybean.training.parameter_server.coordinator import Coordinator  # noqa: E402
from jellybean.training.parameter_server.flat_tensors import FlatTensors  # noqa: E402
from jellybean.training.parameter_server.listener import Listener  # noqa: E402
from jellybean.training.parameter_server.roles import Role, document_alone  # noqa: E402
from jellybean.training.parameter_server.weights import frozen_of, stage_of  # noqa: E402
from jellybean.training.processes.ranks import process_group  # noqa: E402
from jellybean.training.setup import RankRun, set_up_run  # noqa: E402
from tests.support.training_runs import write_project  # noqa: E402

KEY = b"k" * 32
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
    project = write_project(tmp_path / "project", DOCUMENT, NETS)
    document = load_training(project)
    alone = document_alone(document, Role(0, serves=True))
    with process_group(alone, workers=document.replicas) as rank, ThreadPoolExecutor() as pool:
        run = set_up_run(alone, project, rank)
        coordinator = Coordinator(run, document, lambda _: None)
        with closing(Listener("127.0.0.1", KEY, coordinator.serve)) as listener:
            place = ("127.0.0.1", listener.port)
            with closing(connect(place, KEY, 10)) as one, closing(connect(place, KEY, 10)) as other:
                workers = [WorkerEnd(channel, run, number) for number, channel in enumerate((one, other))]
                coordinator.wait_for_workers()
                yield Ends(run, coordinator, workers, pool)
        run.transport.close()


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
