"""Runs a schedule on torch modules: every device's actions, in their order, each as soon as what it needs is there.

There is one for all schedules. What an action means stands in `ActionKind`; which weights it uses, it says itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import torch

from jellybean.training.processes.messages import Key, Tensors
from jellybean.training.processes.transport import Transport
from jellybean.training.stages.stage import Stage
from jellybean.training.stages.updates import Updates
from jellybean_solver.pipeline import Action, ActionKind, Schedule

Held = Mapping[tuple[int, int], Stage]  # stage, pipe


class Feed(Protocol):
    """The micro-batches of one iteration, of one replica. Ranks ask only for what their stages need."""

    def inputs(self, microbatch: int) -> Tensors:
        """What the first stage takes."""

    def target(self, microbatch: int) -> Any:
        """What the loss takes beside the last stage's output."""

    def factor(self, microbatch: int) -> float:
        """Its part of the loss that its update lowers: its samples over those of the update, all replicas counted."""

    def seed(self, microbatch: int, stage: int) -> int:
        """Of what is random in a forward."""


@dataclass
class Record:
    """What a rank did in an iteration: seconds on its clock, by action, and the losses it saw, by micro-batch."""

    starts_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    losses: dict[int, torch.Tensor] = field(default_factory=dict)


class Interpreter:
    """Of one rank, which is a device of the schedule in one replica. `done` is called after every action."""

    def __init__(
        self,
        schedule: Schedule,
        held: Held,
        transport: Transport,
        updates: Updates,
        *,
        device: int,
        first_rank: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self._schedule, self._held, self._transport, self._updates = schedule, held, transport, updates
        self._actions, self._first_rank, self._clock = schedule.actions[device], first_rank, clock
        self._device, self._done = device, done
        self._iteration = 0
        self._here: dict[Key, Tensors] = {}
        self._last_use: dict[tuple[int, int], dict[int, int]] = {copy: {} for copy in held}
        for place, action in enumerate(self._actions):
            if action.kind not in (ActionKind.UPDATE, ActionKind.REDUCE):
                self._last_use[action.stage, action.pipe][action.version] = place

    def run(self, feed: Feed, lr: Callable[[int], float] | None = None) -> Record:
        """One iteration. `lr`: of an update by the number of those before it in the iteration; None: as it is."""
        for copy, stage in self._held.items():
            stage.begin(self._last_use[copy])
        self._updates.begin(lr)
        record = Record()
        for place, action in enumerate(self._actions):
            stage = self._held[action.stage, action.pipe]
            self._step(place, action, stage, feed, record)
            self._done()
        self._iteration += 1
        return record

    def _step(self, place: int, action: Action, stage: Stage, feed: Feed, record: Record) -> None:
        taken = self._inputs(action, feed)
        record.starts_s.append(self._clock())
        given: Tensors | torch.Tensor | None = None
        match action.kind:
            case ActionKind.FORWARD:
                given = self._forward(action, stage, taken, feed)
            case ActionKind.BACKWARD:
                given = stage.backward(action.microbatch, taken)
            case ActionKind.INPUT_GRADIENT:
                given = stage.input_gradient(action.microbatch, taken)
            case ActionKind.WEIGHT_GRADIENT:
                stage.weight_gradient(action.microbatch)
            case ActionKind.REDUCE:
                self._updates.reduce(action.stage, stage)
            case ActionKind.UPDATE:
                self._updates.update(action, stage, place)
        record.ends_s.append(self._clock())
        if isinstance(given, torch.Tensor):
            record.losses[action.microbatch] = given
        elif given is not None:
            self._hand_on(action, given)

    def _forward(self, action: Action, stage: Stage, taken: Tensors, feed: Feed) -> Tensors | torch.Tensor:
        last, microbatch = stage.loss is not None, action.microbatch
        return stage.forward(
            microbatch,
            taken,
            action.version,
            seed=feed.seed(microbatch, action.stage),
            target=feed.target(microbatch) if last else None,
            factor=feed.factor(microbatch) if last else 1.0,
        )

    def _inputs(self, action: Action, feed: Feed) -> Tensors:
        """What other stages made for it."""
        stage, last = action.stage, self._schedule.stages - 1
        if action.kind is ActionKind.FORWARD:
            if stage == 0:
                return feed.inputs(action.microbatch)
            found = self._take(action, stage - 1)
            return tuple(None if value is None else _asked(value) for value in found)
        if action.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT) and stage < last:
            return self._take(action, stage + 1)
        return ()

    def _take(self, action: Action, maker: int) -> Tensors:
        key = self._key(action, action.stage)
        if self._schedule.device_of[action.pipe][maker] == self._device:
            return self._here.pop(key)
        return self._transport.take(key)

    def _hand_on(self, action: Action, given: Tensors) -> None:
        taker = action.stage + 1 if action.kind is ActionKind.FORWARD else action.stage - 1
        if not 0 <= taker < self._schedule.stages:
            return
        key, device = self._key(action, taker), self._schedule.device_of[action.pipe][taker]
        values = tuple(None if value is None else value.detach() for value in given)
        if device == self._device:
            self._here[key] = values
        else:
            self._transport.send(self._first_rank + device, key, values)

    def _key(self, action: Action, taker: int) -> Key:
        way = 0 if action.kind is ActionKind.FORWARD else 1
        return Key(self._iteration, way, taker, action.microbatch, action.pipe)


def peers_of(schedule: Schedule, device: int, first_rank: int = 0) -> list[int]:
    """The ranks that a device exchanges messages with."""
    found = set()
    for places in schedule.device_of:
        for one, other in pairwise(places):
            found |= {other} if one == device else {one} if other == device else set()
    return sorted(first_rank + other for other in found - {device})


def _asked(value: torch.Tensor) -> torch.Tensor:
    return value.requires_grad_() if value.is_floating_point() else value
