"""Stages that form a graph, each on its device, so that parallel branches of a model run at the same time.

One update after a flush. The order of a device is that of a list schedule with the stages' times: the action that can
start first runs first; of several, a backward before a forward, and earlier micro-batches before later ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.schedule.actions import Action, ActionKind
from jellybean_solver.pipeline.schedule.schedule import Schedule, require_at_least, synchronous_schedule

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
_Key = tuple[ActionKind, int, int]  # kind, stage, micro-batch


@dataclass(frozen=True, slots=True)
class StageGraph:
    """`devices[stage]`: where a stage is. `edges`: (from, to) stages, from lower to higher numbers.

    `forward_s`, `backward_s`: seconds of each stage, by which its device's order is chosen.
    """

    devices: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


def branch_schedule(graph: StageGraph, microbatches: int) -> Schedule:
    """The schedule, with as many micro-batches in flight as there are devices. SolverError for edges backwards."""
    require_at_least("branches", "micro-batch", microbatches, 1)
    stages = range(len(graph.devices))
    if any(not one < other or other not in stages for one, other in graph.edges):
        raise SolverError("branches: tensors go from a stage to one with a higher number")
    if sorted(set(graph.devices)) != list(range(max(graph.devices) + 1)):
        raise SolverError(f"branches: the devices are {sorted(set(graph.devices))}, without a gap from 0 on")
    orders = _ListOrder(graph, microbatches).orders()
    schedule = synchronous_schedule("branches", microbatches, (graph.devices,), orders)
    return replace(schedule, edges=tuple(sorted(graph.edges)))


class _ListOrder:
    """List scheduling of one iteration; transfers take no time."""

    def __init__(self, graph: StageGraph, microbatches: int) -> None:
        self.graph, self.microbatches = graph, microbatches
        stages = range(len(graph.devices))
        self.producers = [[one for one, other in graph.edges if other == stage] for stage in stages]
        self.consumers = [[other for one, other in graph.edges if one == stage] for stage in stages]
        self.in_flight = max(graph.devices) + 1
        self.ends_s: dict[_Key, float] = {}
        self.next = {(kind, stage): 0 for kind in (F, B) for stage in stages}

    def orders(self) -> list[list[Action]]:
        """The actions of each device in execution order."""
        found: list[list[Action]] = [[] for _ in range(self.in_flight)]
        free_s = [0.0] * self.in_flight
        for _ in range(2 * len(self.graph.devices) * self.microbatches):
            start_s, _, number, stage, kind = min(self._startable(free_s))
            device = self.graph.devices[stage]
            seconds = self.graph.forward_s if kind is F else self.graph.backward_s
            free_s[device] = self.ends_s[kind, stage, number] = start_s + seconds[stage]
            self.next[kind, stage] += 1
            found[device].append(Action(kind, stage, number))
        return found

    def _startable(self, free_s: Sequence[float]) -> Iterator[tuple[float, bool, int, int, ActionKind]]:
        """(start, a forward, micro-batch, stage, kind) of each stage's next actions whose inputs are computed."""
        for (kind, stage), number in self.next.items():
            if number < self.microbatches:
                ends_s = [self.ends_s.get(key) for key in self._inputs(kind, stage, number)]
                if None not in ends_s:
                    ready_s = max((end for end in ends_s if end is not None), default=0.0)
                    start_s = max(free_s[self.graph.devices[stage]], ready_s)
                    yield start_s, kind is F, number, stage, kind

    def _inputs(self, kind: ActionKind, stage: int, number: int) -> list[_Key]:
        if kind is B:
            return [(F, stage, number), *((B, other, number) for other in self.consumers[stage])]
        inputs: list[_Key] = [(F, other, number) for other in self.producers[stage]]
        if not inputs and number >= self.in_flight:
            inputs = [(B, other, number - self.in_flight) for other in range(len(self.graph.devices))]
        return inputs
