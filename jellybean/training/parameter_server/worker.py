"""A worker: asks for a work item of the epoch, pulls the weights, computes the work item's gradient and pushes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from jellybean.documents.training import TrainingDocument
from jellybean.training.data.feed import IterationFeed
from jellybean.training.data.rows import MemoryReader, MemoryRows, MicrobatchReader, ReadPlan
from jellybean.training.errors import RankLostError, TrainingError
from jellybean.training.parameter_server.channel import Channel, Header, connect
from jellybean.training.parameter_server.flat_tensors import FlatTensors
from jellybean.training.parameter_server.rendezvous import Rendezvous
from jellybean.training.parameter_server.roles import Role, divide_epoch, document_alone
from jellybean.training.parameter_server.shards import divide_weights
from jellybean.training.parameter_server.weights import frozen_of, replace_weights, sizes_of, stage_of, trained_of
from jellybean.training.parameter_server.work_items import WorkItem
from jellybean.training.processes.ranks import process_group
from jellybean.training.setup import RankRun, set_up_run

_USES = 2  # of a micro-batch: its inputs and its target


def work(document: TrainingDocument, directory: Path, role: Role) -> None:
    """Be a worker until the first server ends the run."""
    alone = document_alone(document, role)
    with process_group(alone, workers=document.replicas) as rank:
        run = set_up_run(alone, directory, rank)
        worker = Worker(run, document, role.number)
        meeting = Rendezvous(document)
        channels: list[Channel] = []
        try:
            for server in range(document.sync.servers):
                channels.append(connect(meeting.address(server), meeting.key(), document.timeout_s))
            worker.run(channels[0], channels[1:])
        finally:
            for channel in channels:
                channel.close()
            run.transport.close()


class Worker:
    """The model of one worker, and its place in the division of epochs."""

    def __init__(self, run: RankRun, document: TrainingDocument, number: int) -> None:
        self._run, self._number, self._seed = run, number, document.seed
        self._division = divide_epoch(document, run.data)
        self._stage = stage_of(run)
        self._layout = FlatTensors(self._stage.versions.trained).layout
        shares = divide_weights(sizes_of(self._stage), document.sync.servers)
        self._weights = [FlatTensors(trained_of(self._stage, names)) for names in shares]  # by server
        self._gradient = [FlatTensors(trained_of(self._stage, names)) for names in shares]
        self._buffers = FlatTensors(self._stage.buffers)
        self._readers: dict[tuple[int, int], MicrobatchReader] = {}

    def run(self, channel: Channel, others: Sequence[Channel] = ()) -> None:
        """Compute work items until there are no more. `others`: further servers. RankLostError if a server is gone."""
        for other in others:
            other.send({"kind": "join"})
            other.receive()
        self._join(channel)
        while True:
            channel.send({"kind": "work"})
            header = channel.receive()
            if header["kind"] == "end":
                return
            if header["kind"] != "item":
                raise RankLostError(f"the parameter server answered {header['kind']}")
            channel.receive_into(self._weights[0].memory, header)
            if header["buffers"]:
                self._receive_buffers(channel)
            self._pull(others)
            self._push(channel, others, header)

    def _join(self, channel: Channel) -> None:
        data = self._run.data
        channel.send(
            {
                "kind": "join",
                "worker": self._number,
                "layout": self._layout,
                "rows": [data.train.digest(), data.test.digest()],
            }
        )
        header = channel.receive()
        if header["kind"] == "refused":
            raise TrainingError(header["why"])
        frozen = FlatTensors(frozen_of(self._stage))
        channel.receive_into(frozen.memory, header)
        replace_weights(self._stage, frozen)

    def _receive_buffers(self, channel: Channel) -> None:
        channel.receive_into(self._buffers.memory, channel.receive())
        buffers = self._stage.buffers
        for name, value in self._buffers.views.items():
            buffers[name].copy_(value)

    def _pull(self, others: Sequence[Channel]) -> None:
        """Take the weights of the further servers, beside those of the first."""
        for other in others:
            other.send({"kind": "pull"})
        for other, weights in zip(others, self._weights[1:], strict=True):
            other.receive_into(weights.memory, other.receive())
        for weights in self._weights:
            replace_weights(self._stage, weights)

    def _push(self, channel: Channel, others: Sequence[Channel], header: Header) -> None:
        began = time.perf_counter()
        item = WorkItem(header["iteration"], header["number"])
        loss = self._compute(header["epoch"], item)
        for gradient in self._gradient:
            gradient.put(self._stage.gradient)
        self._buffers.put(self._stage.buffers)
        seconds = time.perf_counter() - began
        absent = [name for name in self._stage.versions.trained if name not in self._stage.gradient]
        place = {"kind": "push", "epoch": header["epoch"], "iteration": item.iteration, "number": item.number}
        place["absent"] = absent
        for other, gradient in zip(others, self._gradient[1:], strict=True):
            other.send(place, gradient.memory)
        for other in others:
            other.receive()  # the first server, which completes the work item, hears of it after all others have it
        facts = {"loss": loss, "computed_s": seconds, "sent_bytes": sum(one.memory.nbytes for one in self._gradient)}
        channel.send({**place, **facts}, self._gradient[0].memory)
        if self._buffers.views:
            channel.send({"kind": "buffers"}, self._buffers.memory)

    def _compute(self, epoch: int, item: WorkItem) -> float:
        """The work item's gradient, in the stage; returns its share of the update's loss."""
        stage, division = self._stage, self._division
        before = epoch * division.updates + item.iteration
        device = self._run.rank.device
        reader = self._reader(epoch, item)
        feed = IterationFeed(reader, item.iteration, device, before, item.number, self._seed)
        stage.begin_iteration({})
        stage.gradient = {}
        loss = torch.zeros((), dtype=torch.float64)
        for microbatch in range(division.run):
            inputs = feed.inputs(microbatch, stage.inputs.arguments)
            target, factor, seed = feed.target(microbatch), feed.factor(microbatch), feed.seed(microbatch, 0)
            microbatch_loss = stage.forward(microbatch, inputs, 0, seed=seed, target=target, factor=factor)
            stage.backward(microbatch, ())
            if not isinstance(microbatch_loss, torch.Tensor):
                raise AssertionError("the only stage returned no loss")
            loss += microbatch_loss.double().cpu() * factor
        if not isinstance(reader, MemoryReader):
            reader.close()
        return float(loss)

    def _reader(self, epoch: int, item: WorkItem) -> MicrobatchReader:
        """The rows of the epoch for a replica; that of an earlier epoch is forgotten.

        Rows that are read from a data set are read from this work item on, as a reader reads forwards only.
        """
        train = self._run.data.train
        if not isinstance(train, MemoryRows):
            return train.read(ReadPlan(self._division, epoch, item.iteration, item.number, lambda _: _USES))
        key = (epoch, item.number)
        if key not in self._readers:
            self._readers = {other: reader for other, reader in self._readers.items() if other[0] == epoch}
            self._readers[key] = train.read(ReadPlan(self._division, epoch, replica=item.number))
        return self._readers[key]
