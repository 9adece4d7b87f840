"""Interprets a schedule on torch modules: executes a device's actions in order, each when its inputs have arrived.

One interpreter runs all schedules (ADR 10): an action's kind defines the operation, its `version` the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import torch

from jellybean.training.processes.streams import HostStreams, Streams, Timestamp
from jellybean.training.processes.tensor_messages import ACTIVATIONS, GRADIENTS, MessageKey, StageTensors
from jellybean.training.processes.transport import StageTransport
from jellybean.training.stages.stage import RandomSeed, StageCopy
from jellybean.training.stages.updates import GroupSettings, WeightUpdates
from jellybean_solver.pipeline import Action, ActionKind, Schedule

HeldStages = Mapping[tuple[int, int], StageCopy]  # stage, first pipe


class MicrobatchFeed(Protocol):
    """The micro-batches of one iteration of a replica. A rank calls only the methods that its stages need."""

    def inputs(self, microbatch: int, arguments: tuple[int, ...]) -> StageTensors:
        """The model's tensors with these indices."""

    def target(self, microbatch: int) -> Any:
        """Second argument of the loss."""

    def factor(self, microbatch: int) -> float:
        """Weight of a micro-batch's mean loss: its samples divided by the update's samples over all replicas."""

    def seed(self, microbatch: int, stage: int) -> RandomSeed:
        """Random seed of a forward."""


@dataclass
class ActionLog:
    """Log of one iteration on a rank: start and end of every action, loss of each micro-batch.

    The times are the device's, as timestamps of `streams`: on a GPU the host only enqueues an action.
    """

    streams: Streams = field(default_factory=HostStreams)
    starts: list[Timestamp] = field(default_factory=list)
    ends: list[Timestamp] = field(default_factory=list)
    losses: dict[int, torch.Tensor] = field(default_factory=dict)

    def times_s(self) -> tuple[list[float], list[float]]:
        """(starts, ends) of all actions, in seconds of `time.perf_counter`. Waits for a GPU."""
        seconds = self.streams.seconds([*self.starts, *self.ends])
        return seconds[: len(self.starts)], seconds[len(self.starts) :]


@dataclass(frozen=True)
class Place:
    """Where an interpreter runs: device `device` of the schedule, in the replica whose first rank is `first_rank`.

    `step`: from the rank of a device to that of the next one.
    """

    device: int
    first_rank: int = 0
    streams: Streams = field(default_factory=HostStreams)
    step: int = 1


class Interpreter:
    """Interpreter of one rank. `held`: the stage copies on its device, by stage and the first of the copy's pipes.

    `done` is called after each action.
    """

    def __init__(
        self,
        schedule: Schedule,
        held: HeldStages,
        transport: StageTransport,
        updates: WeightUpdates,
        place: Place,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self._schedule, self._held, self._transport, self._updates = schedule, held, transport, updates
        self._actions, self._place, self._done = schedule.actions[place.device], place, done
        self._iteration = 0
        self._local: dict[MessageKey, StageTensors] = {}
        self._producers = [schedule.producers(stage) for stage in range(schedule.stages)]
        self._consumers = [schedule.consumers(stage) for stage in range(schedule.stages)]
        first_pipes = schedule.first_pipes
        self._copies = [(action.stage, first_pipes[action.pipe][action.stage]) for action in self._actions]
        self._last_use: dict[tuple[int, int], dict[int, int]] = {copy: {} for copy in held}
        for index, action in enumerate(self._actions):
            if action.kind not in (ActionKind.UPDATE, ActionKind.REDUCE):
                self._last_use[self._copies[index]][action.version] = index
        self._last_backwards = _last_backwards(self._actions, self._copies)

    def run(self, feed: MicrobatchFeed, settings: Sequence[GroupSettings] = ()) -> ActionLog:
        """Run one iteration. `settings[i]`: optimizer settings of its i-th update; empty: unchanged."""
        for copy, stage in self._held.items():
            stage.begin_iteration(self._last_use[copy])
        self._updates.begin_iteration(settings)
        log = ActionLog(self._place.streams)
        for index, action in enumerate(self._actions):
            stage = self._held[self._copies[index]]
            summed = index in self._last_backwards
            with self._updates.last_backward(action.stage, stage) if summed else nullcontext():
                self._step(index, action, stage, feed, log)
            self._done()
        self._iteration += 1
        return log

    def _step(self, index: int, action: Action, stage: StageCopy, feed: MicrobatchFeed, log: ActionLog) -> None:
        inputs = self._inputs(action, stage, feed)
        if action.kind is ActionKind.UPDATE:
            self._updates.prepare(action.stage, stage)  # waits for other ranks, which is no time of the action
        log.starts.append(self._place.streams.timestamp())
        outputs: StageTensors | torch.Tensor | None = None
        match action.kind:
            case ActionKind.FORWARD:
                outputs = self._forward(action, stage, inputs, feed)
            case ActionKind.BACKWARD:
                outputs = stage.backward(action.microbatch, inputs)
            case ActionKind.INPUT_GRADIENT:
                outputs = stage.input_gradient(action.microbatch, inputs)
            case ActionKind.WEIGHT_GRADIENT:
                stage.weight_gradient(action.microbatch)
            case ActionKind.REDUCE:
                self._updates.reduce(action.stage, stage)
            case ActionKind.UPDATE:
                self._updates.update(action, stage, index)
        log.ends.append(self._place.streams.timestamp())
        if isinstance(outputs, torch.Tensor):
            log.losses[action.microbatch] = outputs
        elif outputs is not None:
            self._pass_on(action, stage, outputs)

    def _forward(
        self, action: Action, stage: StageCopy, inputs: StageTensors, feed: MicrobatchFeed
    ) -> StageTensors | torch.Tensor:
        last, microbatch = stage.loss is not None, action.microbatch
        return stage.forward(
            microbatch,
            inputs,
            action.version,
            seed=feed.seed(microbatch, action.stage),
            target=feed.target(microbatch) if last else None,
            factor=feed.factor(microbatch) * self._updates.loss_factor if last else 1.0,
        )

    def _inputs(self, action: Action, stage: StageCopy, feed: MicrobatchFeed) -> StageTensors:
        """Inputs of an action: received from another stage, and the model's arguments that the stage reads."""
        last = action.stage == self._schedule.stages - 1
        if action.kind is ActionKind.FORWARD:
            values = [value for one in self._producers[action.stage] for value in self._take(action, one)]
            return (*stage.inputs.received(tuple(values)), *feed.inputs(action.microbatch, stage.inputs.arguments))
        if action.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT) and not last:
            return self._gradients(action, stage) if stage.inputs.expects_gradient else ()
        return ()

    def _gradients(self, action: Action, stage: StageCopy) -> StageTensors:
        """The gradients of a stage's outputs, from the stages that received them."""
        links = stage.inputs.links
        if links is None:
            return self._take(action, action.stage + 1)
        return links.sum_gradients({consumer: self._take(action, consumer) for consumer in links.gradient_senders})

    def _take(self, action: Action, producer: int) -> StageTensors:
        key = self._key(action, producer, action.stage)
        if self._schedule.device_of[action.pipe][producer] == self._place.device:
            return self._local.pop(key)
        return self._transport.take(key)

    def _pass_on(self, action: Action, stage: StageCopy, outputs: StageTensors) -> None:
        links = stage.inputs.links
        if action.kind is ActionKind.FORWARD:
            for consumer in self._consumers[action.stage]:
                self._send(action, consumer, outputs if links is None else links.sent_to(consumer, outputs))
        elif links is not None:
            for producer in sorted(links.trained_sources):
                self._send(action, producer, links.gradients_for(producer, outputs))
        elif action.stage and stage.inputs.sends_gradient:
            self._send(action, action.stage - 1, outputs)

    def _send(self, action: Action, receiver: int, outputs: StageTensors) -> None:
        key, device = self._key(action, action.stage, receiver), self._schedule.device_of[action.pipe][receiver]
        values = tuple(None if value is None else value.detach() for value in outputs)
        if device == self._place.device:
            self._local[key] = values
        else:
            self._transport.send(self._place.first_rank + device * self._place.step, key, values)

    def _key(self, action: Action, sender: int, receiver: int) -> MessageKey:
        kind = ACTIVATIONS if action.kind is ActionKind.FORWARD else GRADIENTS
        place = sender * self._schedule.stages + receiver  # several stages may send to one
        return MessageKey(self._iteration, kind, place, action.microbatch, action.pipe)


def _last_backwards(actions: Sequence[Action], copies: Sequence[tuple[int, int]]) -> frozenset[int]:
    """Indices of the actions that complete a stage's gradient for an update. `copies`: the copy that each one uses."""
    last: dict[tuple[int, int], int] = {}
    found = set()
    for index, (action, copy) in enumerate(zip(actions, copies, strict=True)):
        if action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT):
            last[copy] = index
        elif action.kind is ActionKind.UPDATE and copy in last:
            found.add(last.pop(copy))
    return frozenset(found)


def neighbours(schedule: Schedule, replicas: int = 1, tensor: int = 1) -> list[tuple[int, int]]:
    """All pairs (sender, receiver) of ranks that exchange messages; every pair in both directions.

    Evaluation goes from each stage to the next, also where the schedule's stages form a graph. `tensor`: ranks of a
    device, of which each exchanges messages with those of its index.
    """
    stages = {*schedule.sends, *pairwise(range(schedule.stages))}
    devices = {
        pair
        for places in schedule.device_of
        for one, other in ((places[sender], places[receiver]) for sender, receiver in stages)
        for pair in ((one, other), (other, one))
        if one != other
    }
    firsts = [replica * schedule.devices * tensor + index for replica in range(replicas) for index in range(tensor)]
    return sorted((first + one * tensor, first + other * tensor) for first in firsts for one, other in devices)


def peers_of(schedule: Schedule, device: int, first_rank: int = 0, tensor: int = 1) -> list[int]:
    """The ranks that a device exchanges messages with."""
    return [first_rank + other * tensor for one, other in neighbours(schedule) if one == device]
