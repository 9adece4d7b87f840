"""A server beside the first one, spoken to as the first server and as a worker do: what it counts, and its state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.parameter_server.channel import Channel
from jellybean.training.parameter_server.flat_tensors import FlatTensors
from jellybean.training.parameter_server.further_server import FurtherServer
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
optimizer: {name: sgd, lr: 1, momentum: 0.5}
sync: {way: parameter-server, servers: 2, mode: MODE}
"""
NETS = """\
import torch

def net():
    model = torch.nn.Linear(3, 2, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    return model

def data():
    rows = torch.ones(8, 3, dtype=torch.float64)
    return {"train": (rows, rows[:, :2]), "test": (rows, rows[:, :2])}
"""


class Ends:
    """The ends of the first server and of a worker at a server that keeps the bias of a linear layer."""

    def __init__(self, coordinator: Channel, worker: Channel) -> None:
        self.coordinator, self.worker = coordinator, worker
        self.bias = FlatTensors({"bias": torch.zeros(2, dtype=torch.float64)})
        coordinator.send({"kind": "coordinate"})
        worker.send({"kind": "join"})
        assert worker.receive()["kind"] == "joined"

    def begin(self, epoch: int, first: int, end: int, rates: list[tuple[float, int]]) -> None:
        """A segment with learning rates, each of a number of updates."""
        settings = [[[{"lr": rate}], count] for rate, count in rates]
        place = {"epoch": epoch, "first": first, "end": end}
        self.coordinator.send({"kind": "segment", **place, "settings": settings})
        assert self.coordinator.receive()["kind"] == "ready"

    def push(self, epoch: int, iteration: int, number: int, gradient: float) -> None:
        self.bias.put({"bias": torch.full((2,), gradient, dtype=torch.float64)})
        place = {"kind": "push", "epoch": epoch, "iteration": iteration, "number": number}
        self.worker.send(place, self.bias.memory)
        assert self.worker.receive()["kind"] == "taken"

    def pull(self) -> float:
        """The bias, both of whose values are the same."""
        self.worker.send({"kind": "pull"})
        self.worker.receive_into(self.bias.memory, self.worker.receive())
        one, other = self.bias.views["bias"].tolist()
        assert one == other
        return float(one)


@pytest.fixture
def ends(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ends]:
    with server_run(tmp_path, DOCUMENT.replace("MODE", request.param), NETS, 1) as (document, run):
        server = FurtherServer(run, document, 1)
        with torch.no_grad():
            run.held[0, 0].versions.exact["bias"].zero_()
        with two_connections(server.serve) as (coordinator, worker):
            yield Ends(coordinator, worker)
            coordinator.send({"kind": "end"})
            server.wait()


@pytest.mark.parametrize("ends", ["asp"], indirect=True)
def test_a_part_that_comes_twice_or_late_counts_once(ends):
    """As when a worker dies between its pushes to two servers, or is left out while it computes."""
    ends.begin(0, 0, 2, [(1.0, 2)])
    ends.push(0, 0, 0, 1.0)
    assert ends.pull() == -1.0
    ends.push(0, 0, 0, 1.0)
    assert ends.pull() == -1.0
    ends.push(0, 1, 0, 1.0)
    assert ends.pull() == -2.5  # with momentum
    ends.begin(1, 0, 2, [(10.0, 1), (1.0, 1)])
    ends.push(0, 1, 0, 1.0)  # of the epoch before
    ends.push(1, 5, 0, 1.0)  # of no iteration that is handed out
    assert ends.pull() == -2.5
    ends.push(1, 1, 0, 1.0)  # the first update has the first learning rate, whatever its iteration
    assert ends.pull() == -2.5 - 17.5


@pytest.mark.parametrize("ends", ["bsp"], indirect=True)
def test_an_update_takes_a_gradient_of_every_worker(ends):
    ends.begin(0, 0, 1, [(1.0, 1)])
    ends.push(0, 0, 1, 2.0)
    ends.push(0, 0, 1, 2.0)
    assert ends.pull() == 0.0
    ends.push(0, 0, 0, 1.0)
    assert ends.pull() == -3.0


@pytest.mark.parametrize("ends", ["asp"], indirect=True)
def test_the_first_server_gets_weights_and_optimizer_state_and_gives_them(ends):
    ends.begin(0, 0, 1, [(1.0, 1)])
    ends.push(0, 0, 0, 1.0)
    ends.pull()
    ends.coordinator.send({"kind": "collect"})
    header = ends.coordinator.receive()
    assert header["pulled_bytes"] == 2 * 8
    kept = bytearray(header["payload_bytes"])
    ends.coordinator.receive_into(memoryview(kept), header)
    assert sorted(name for name, *_ in header["tensors"]) == ["state/bias/momentum_buffer", "weight/bias"]
    ends.begin(1, 0, 1, [(1.0, 1)])
    ends.push(1, 0, 0, 4.0)
    assert ends.pull() == -1.0 - 4.5
    ends.coordinator.send({"kind": "state", "tensors": header["tensors"]}, memoryview(kept))
    ends.begin(2, 0, 1, [(1.0, 1)])
    assert ends.pull() == -1.0
    ends.push(2, 0, 0, 0.0)
    assert ends.pull() == -1.5  # the momentum is back, too
