"""Test cases that ranks run: train a chain by a schedule and return the weights."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jellybean.training import (
    GroupCommunicator,
    Interpreter,
    Place,
    Rank,
    StageTransport,
    TrainingError,
    UpdateSettings,
    WeightUpdates,
    make_process_groups,
    peers_of,
)
from jellybean.training.collectives.message_sums import MessageSums
from jellybean.training.processes.links import Link, StagedLink, device_links
from jellybean.training.processes.ranks import translated_errors
from jellybean.training.processes.streams import HostStreams
from jellybean.training.processes.tensor_messages import MessageKey
from jellybean.training.saving import agree_on_checkpoint
from jellybean.training.stages.all_reduce import ProcessGroups
from jellybean.training.stages.cut import CutModule
from jellybean.training.stages.gradient_sums import GradientSums, TorchSums
from jellybean.training.stages.interpreter import ActionLog, neighbours
from jellybean.training.stages.loss_scale import LossScale
from jellybean.training.stages.master_weights import MasterWeights
from jellybean.training.stages.stage import StageSettings
from jellybean.training.stages.updates import check_tied_weights
from jellybean_solver.pipeline import Schedule, make_schedule, replicated_schedule
from tests.integration.training.nets import Chain, batches, cut_evenly, loss

Batches = list[tuple[torch.Tensor, torch.Tensor]]
LR, MOMENTUM = 0.01, 0.5


@dataclass(frozen=True)
class Given:
    """Given micro-batches of one replica (`MicrobatchFeed`); `counted`: samples of each micro-batch's update."""

    own: Batches
    counted: list[int]

    def inputs(self, microbatch: int, arguments: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        return tuple((self.own[microbatch][0],)[index] for index in arguments)

    def target(self, microbatch: int) -> torch.Tensor:
        return self.own[microbatch][1]

    def factor(self, microbatch: int) -> float:
        return len(self.own[microbatch][0]) / self.counted[microbatch]

    def seed(self, microbatch: int, stage: int) -> int:
        return 1000 * microbatch + stage


@dataclass(frozen=True)
class Train:
    """Train a chain by a schedule. `sizes[iteration][replica]`: sizes of the micro-batches.

    `devices`: those of the pipeline, all replicas of its stages counted.
    """

    name: str
    devices: int
    sizes: list[list[list[int]]]
    chunks: int | None = None
    counts: tuple[int, ...] = ()  # replicas of each stage, if not one
    placement: tuple[tuple[int, ...], ...] | None = None  # devices of each stage's replicas
    tied: bool = True
    norm: bool = False
    clip: float | None = None
    recompute: bool = False
    compress: str = "none"
    others_on_meta: bool = False  # stages of other ranks have no memory, and touching one is an error
    links: str = "host"  # how tensors travel: host, device (a communicator by direction), staged
    precision: torch.dtype | None = None
    single: bool = False  # the model and its data in float32, which autocast converts
    short: torch.dtype | None = None  # type of weight matrices, with master copies
    loss_scale: LossScale | None = None
    dropout: float = 0.0
    sync: str = "torch"  # how copies sum their gradients
    bucket_bytes: float = 200.0  # a gradient or two
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    options: dict[str, Any] = field(default_factory=lambda: {"lr": LR, "momentum": MOMENTUM})

    @property
    def schedule(self) -> Schedule:
        if self.counts:
            return replicated_schedule(self.name, self.counts, len(self.sizes[0][0]), self.placement)
        return make_schedule(self.name, self.devices, len(self.sizes[0][0]), self.chunks)

    def cut(self, chain: torch.nn.Module) -> CutModule:
        return cut_evenly(chain, self.schedule.stages, (torch.zeros(3, 6, dtype=self.dtype),))

    def chain(self) -> torch.nn.Module:
        return Chain(tied=self.tied, norm=self.norm, dropout=self.dropout).to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.single else torch.float64

    def data(self, iteration: int) -> list[Batches]:
        """Micro-batches of every replica."""
        given = [batches(100 * iteration + replica, sizes) for replica, sizes in enumerate(self.sizes[iteration])]
        return [[(x.to(self.dtype), y.to(self.dtype)) for x, y in own] for own in given]

    def feed(self, iteration: int, replica: int) -> Given:
        period, every = self.schedule.period, self.sizes[iteration]
        sums = [sum(sum(own[first : first + period]) for own in every) for first in range(0, len(every[0]), period)]
        counted = [sums[number // period] for number in range(len(every[replica]))]
        return Given(self.data(iteration)[replica], counted)

    def _sums(self, groups: ProcessGroups) -> GradientSums:
        if self.sync == "torch":
            return TorchSums(groups)
        return MessageSums(self.sync, self.bucket_bytes, groups.copies, groups.ties)

    def _links(self, rank: int, peers: list[int]) -> Mapping[int, Link] | None:
        """The links that GPUs use, here in host memory, where gloo's `wait` blocks the host."""
        if self.links == "device":
            return device_links(neighbours(self.schedule, len(self.sizes[0])), rank, HostStreams(), "gloo")
        if self.links == "staged":
            return {peer: StagedLink(peer, GroupCommunicator(), HostStreams()) for peer in peers}
        return None

    def __call__(self, rank: int) -> dict[str, Any] | None:
        schedule, replicas = self.schedule, len(self.sizes[0])
        chain = self.chain()
        cut = self.cut(chain)
        check_tied_weights(schedule, cut.tied)
        groups = make_process_groups(schedule, replicas, cut.tied)
        headers = dist.new_group(list(range(replicas * self.devices)), backend="gloo")
        replica, device = divmod(rank, self.devices)
        first = replica * self.devices
        peers = peers_of(schedule, device, first)
        links = self._links(rank, peers if replica < replicas else [])
        if replica >= replicas:
            return None
        masters = MasterWeights(self.short) if self.short is not None else None
        settings = StageSettings(self.precision, self.recompute, masters)
        loss_scale = copy.copy(self.loss_scale)
        own = {number for number, _ in schedule.copies_on(device)}
        for number, stage in enumerate(cut.stages) if self.others_on_meta else ():
            if number not in own:
                stage.module.to("meta")
        held = {
            (number, pipe): stage.copy(
                settings,
                (lambda outputs, target: loss(outputs[0], target)) if number == schedule.stages - 1 else None,
                torch.device("cpu"),
            )
            for number, pipe in schedule.copies_on(device)
            for stage in [cut.stages[number]]
        }
        updates = WeightUpdates(
            held,
            lambda own: self.optimizer(own.values(), **self.options),
            groups,
            UpdateSettings(schedule.flushes, cut.tied, self.clip, replica == 0, loss_scale),
            sums=MessageSums(self.sync, self.bucket_bytes, groups.copies, groups.ties)
            if self.sync != "torch"
            else None,
        )
        transport = StageTransport(peers, GroupCommunicator(headers), links=links, compress=self.compress)
        transport.start()
        interpreter = Interpreter(schedule, held, transport, updates, Place(device, first))
        told: list[ActionLog] = []
        weights, scales = [], []
        for iteration in range(len(self.sizes)):
            with UntouchedMeta() if self.others_on_meta else nullcontext():
                told.append(interpreter.run(self.feed(iteration, replica)))
            weights.append(
                {
                    name: value.detach().clone()
                    for stage in held.values()
                    for name, value in stage.versions.exact.items()
                }
            )
            scales.append(updates.loss_factor)
        transport.close()
        return {
            "weights": weights,
            "types": {n: value.dtype for stage in held.values() for n, value in stage.versions.parameters.items()},
            "scales": scales,
            "buffers": {n: b.clone() for s in held.values() for n, b in s.buffers.items()},
            "losses": [{m: float(v) for m, v in record.losses.items()} for record in told],
            "versions": {copy: stage.versions.peak for copy, stage in held.items()},
            "sent_bytes": updates.sent_bytes,
            "left": sum(stage.live for stage in held.values()),
        }


class UntouchedMeta(TorchDispatchMode):
    """Touching a tensor without memory is an error."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if any(isinstance(one, torch.Tensor) and one.is_meta for one in tree_leaves((args, kwargs, found))):
            raise AssertionError(f"{function} touches a stage of another rank")
        return found


@dataclass(frozen=True)
class GoOn:
    """Each rank reads checkpoints from its own folder; returns the epoch that it resumes from, or the error."""

    folder: str

    def __call__(self, rank: int) -> int | str:
        try:
            found = agree_on_checkpoint(Rank(rank, 1, torch.device("cpu")), Path(self.folder) / str(rank))
        except TrainingError as error:
            return str(error)
        return 0 if found is None else int(found.manifest["epochs"])


@dataclass(frozen=True)
class Pause:
    """Two ranks pause for longer than their group's timeout, then continue; then one waits for nothing."""

    timeout_s: float = 3.0

    def __call__(self, rank: int) -> str:
        headers = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout_s))
        if rank > 1:
            return ""
        transport = StageTransport([1 - rank], GroupCommunicator(headers), patience_s=self.timeout_s)
        transport.start()
        for number in range(2):
            time.sleep(number * 1.3 * self.timeout_s)
            transport.send(1 - rank, MessageKey(number, 0, 0, 0, 0), (torch.full((2,), number),))
            told = transport.take(MessageKey(number, 0, 0, 0, 0))[0]
            if told is None or told.tolist() != [number] * 2:
                return f"{told} came in place of {number}"
        transport.close()
        try:
            StageTransport([], GroupCommunicator(headers), patience_s=0.1).take(MessageKey(2, 0, 0, 0, 0))
        except TrainingError as error:
            silent = str(error)
        if rank:  # what comes breaks the group for both
            return silent
        try:
            with translated_errors(0.1):
                dist.irecv(torch.zeros(1), 1 - rank, headers).wait(timedelta(seconds=0.1))
        except TrainingError as error:
            return f"{silent}; {error}"
        return "nothing was sent, and something came"


def merged(found: list[dict[str, Any] | None], iteration: int = -1) -> dict[str, torch.Tensor]:
    """All ranks' weights; copies of a weight must agree."""
    weights: dict[str, torch.Tensor] = {}
    for own in found:
        for name, value in (own["weights"][iteration] if own else {}).items():
            if name in weights and not torch.allclose(weights[name], value, rtol=1e-12, atol=1e-14):
                raise AssertionError(f"ranks disagree on {name} by {(weights[name] - value).abs().max()}")
            weights[name] = value
    return weights
