"""Costs of a stage's actions: from times of layers and messages, and from what trials of the real parts have shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_profile import TorchProfile
from jellybean.training.choice.compression import compressions, transfer_s
from jellybean.training.processes.link_speed import LinkSpeed
from jellybean.training.tensor_parallel.profile import group_seconds
from jellybean_solver.pipeline import COLLECTIVES, ActionKind, Schedule, ScheduleCosts, stage_seconds

_TORCH_ALL_REDUCE = "ring"  # gloo's and NCCL's algorithm for large sums


@dataclass(frozen=True)
class MeasuredCosts:
    """What a profile of layers leaves out, measured by training for a few iterations; by default nothing.

    `gap_s`: between two actions of a device: the interpreter, rows, messages. `update_s_per_byte`: an optimizer's step,
    by bytes of trained weights. `slowdown`: by number of processes that compute at once, how much longer their actions
    take than the layers of one process alone; the next smaller number counts for one that is missing.
    `message_s`: what a message takes beyond the measured latency, as its receiver waits for a core.
    `with_messages`: the gap is one of devices that exchange messages.
    """

    gap_s: float = 0.0
    update_s_per_byte: float = 0.0
    slowdown: Mapping[int, float] = field(default_factory=dict)
    message_s: float = 0.0
    with_messages: bool = False

    def slowdown_of(self, processes: int) -> float:
        """The factor for so many processes; 1 if none was measured."""
        known = [count for count in self.slowdown if count <= processes]
        return self.slowdown[max(known)] if known else 1.0

    def learned(
        self,
        document: TrainingDocument,
        schedule: Schedule,
        predicted: ScheduleCosts,
        shown: ScheduleCosts,
        trained_bytes: float,
    ) -> MeasuredCosts:
        """With what the trial of a document's candidate has shown: each number by the first trial that can show it.

        The slowdown is the least of all trials, as other programs can only add to it.

        Actions of split layers wait for each other, so they show the slowdown only where nothing else does.
        `predicted`: the candidate's costs with what was measured before. `trained_bytes`: of a process's weights, over
        all stages.
        """
        processes, messages = document.device_processes, document.devices > 1
        known = replace(self, with_messages=self.with_messages or messages)
        if not (document.tensor and self.slowdown):
            ratio = _compute_s(shown, schedule) / max(_compute_s(predicted, schedule), 1e-9)
            slowdown = min(self.slowdown.get(processes, math.inf), self.slowdown_of(processes) * ratio)
            known = replace(known, slowdown={**self.slowdown, processes: slowdown})
        if messages and not self.with_messages:
            known = replace(known, gap_s=shown.gap_s, message_s=_longer_messages_s(shown, predicted))
        if not self.slowdown:
            update_s = sum(stage_seconds(shown.update_s, stage) for stage in range(schedule.stages))
            per_byte = update_s / trained_bytes / known.slowdown_of(processes) if trained_bytes else 0.0
            known = replace(known, gap_s=shown.gap_s, update_s_per_byte=per_byte)
        return known


def _longer_messages_s(shown: ScheduleCosts, predicted: ScheduleCosts) -> float:
    if not isinstance(shown.transfer_s, tuple):
        return 0.0
    pairs = [(one, stage_seconds(predicted.transfer_s, stage)) for stage, one in enumerate(shown.transfer_s)]
    return max(0.0, mean(one - other for one, other in pairs))


def _compute_s(costs: ScheduleCosts, schedule: Schedule) -> float:
    """Forward and backward seconds of a micro-batch, over all stages; forward alone where the backward is split.

    Both halves of a split backward take longer than the whole on any number of processes.
    """
    used = {action.kind for actions in schedule.actions for action in actions}
    kinds = {ActionKind.FORWARD} if ActionKind.INPUT_GRADIENT in used else {ActionKind.FORWARD, ActionKind.BACKWARD}
    return sum(costs.computing_s(kind, stage) for kind in sorted(kinds) for stage in range(schedule.stages))


@dataclass(frozen=True)
class Prices:
    """All that a candidate's costs depend on, beside its stages."""

    link: LinkSpeed
    measured: MeasuredCosts = field(default_factory=MeasuredCosts)


def schedule_costs(
    profile: TorchProfile,
    layers: Sequence[Sequence[int]],
    schedule: Schedule,
    document: TrainingDocument,
    prices: Prices,
) -> ScheduleCosts:
    """Costs of a schedule's actions on these stages, in the document's numbers of devices and replicas."""
    graph, measured = profile.graph, prices.measured
    slow = measured.slowdown_of(document.device_processes)
    shared = [group_seconds(profile, stage, prices.link) for stage in layers]
    forward, backward = (
        tuple(
            slow * sum(getattr(graph.layers[layer], name) for layer in stage) + sums[way]
            for stage, sums in zip(layers, shared, strict=True)
        )
        for way, name in enumerate(("forward_s", "backward_s"))
    )
    inputs: tuple[float, ...] | None = None
    weights: tuple[float, ...] | None = None
    if document.recompute:  # the input gradient needs the repeated forward, the weight gradient does not
        inputs = tuple(back / 2 + there for back, there in zip(backward, forward, strict=True))
        weights = tuple(back / 2 for back in backward)
        backward = tuple(back + there for back, there in zip(backward, forward, strict=True))
    trained_bytes = [sum(profile.trained_bytes[layer] for layer in stage) for stage in layers]
    sums = [_sum_s(size, document, schedule.copies_of(stage), prices.link) for stage, size in enumerate(trained_bytes)]
    return ScheduleCosts(
        forward,
        backward,
        inputs,
        weights,
        transfer_s=_transfers_s(profile, layers, prices, document),
        update_s=tuple(slow * measured.update_s_per_byte * size for size in trained_bytes),
        gap_s=measured.gap_s,
        wait_s=tuple(sums),
    )


def _transfers_s(
    profile: TorchProfile, layers: Sequence[Sequence[int]], prices: Prices, document: TrainingDocument
) -> tuple[float, ...] | float:
    """Seconds from each stage to the next."""
    graph, link = profile.graph, prices.link
    types = compressions(graph, layers, document, link)
    sizes = graph.boundary_bytes(layers)
    crossing = [transfer_s(size, sent, link) for size, sent in zip(sizes, types, strict=True)]
    return tuple(seconds + prices.measured.message_s for seconds in crossing) if crossing else 0.0


def _sum_s(size_bytes: float, document: TrainingDocument, copies: int, link: LinkSpeed) -> float:
    """Seconds of one sum of a stage's gradients over its copies and replicas, by the closed form."""
    way = document.sync.way if document.sync.way in COLLECTIVES else _TORCH_ALL_REDUCE
    return COLLECTIVES[way].seconds(size_bytes, copies * document.replicas, link.bytes_per_s, link.latency_s)
