"""Device placement: assigns the layers of a branching model to devices, so that branches run in parallel.

The objective is the makespan of one micro-batch, forward and backward. A layer's output is sent once to every other
device that reads it, and its gradient back, concurrently with computation. An idle device starts the ready task with
the longest critical path to the end (list scheduling). The best placement is found by branch and bound over the layers
in topological order; if that takes too long, a gap remains to the lower bound, the larger of the critical path and the
work spread evenly.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from jellybean_solver.pipeline.partitioning.cut_short import is_out_of_time
from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph
from jellybean_solver.pipeline.partitioning.stages import PartitionStage

# Limit of the search, in layers visited; and the share of it that local search may use before branch and bound.
MAX_STEPS = 400_000
LOCAL_SEARCH_SHARE = 0.3
Placement = Sequence[int]  # layer -> device


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """Best placement found: makespan of one micro-batch in seconds, device of each layer.

    `bound_s`: lower bound of the makespan over all placements. `evaluated`: placements that were timed or pruned.
    `out_of_time`: the time limit of the work ended the search.
    """

    seconds: float
    bound_s: float
    devices: tuple[int, ...]
    evaluated: int
    out_of_time: bool = False


class TaskGraph:
    """The forward and backward of each layer as tasks: forward of layer i is task i, its backward n + i.

    `predecessors[task]`, `successors[task]`: (task, transfer seconds if on different devices).
    """

    def __init__(self, graph: LayerGraph, bandwidth: float) -> None:
        self.size = size = len(graph.layers)
        self.bandwidth = bandwidth
        self.seconds = [layer.forward_s for layer in graph.layers] + [layer.backward_s for layer in graph.layers]
        self.predecessors: list[list[tuple[int, float]]] = [[] for _ in range(2 * size)]
        self.successors: list[list[tuple[int, float]]] = [[] for _ in range(2 * size)]
        transfers = [(up, down, graph.layers[up].activation_bytes / bandwidth) for up, down in graph.edges]
        edges = list(transfers)
        edges += [(size + down, size + up, sent_s) for up, down, sent_s in transfers]
        edges += [(layer, size + layer, 0.0) for layer in range(size)]
        for task, successor, sent_s in edges:
            self.predecessors[successor].append((task, sent_s))
            self.successors[task].append((successor, sent_s))
        self.order = [*range(size), *reversed(range(size, 2 * size))]
        self.tail_s = [0.0] * (2 * size)  # critical path from a task's start to the end
        for task in reversed(self.order):
            after = max((self.tail_s[successor] for successor, _ in self.successors[task]), default=0.0)
            self.tail_s[task] = self.seconds[task] + after

    def device(self, placement: Placement, task: int) -> int:
        return placement[task % self.size]

    def makespan_s(self, placement: Placement) -> float:
        """Seconds of one micro-batch under a placement, by list scheduling in order of the start times."""
        missing = [len(predecessors) for predecessors in self.predecessors]
        arriving = [(0.0, task) for task, count in enumerate(missing) if not count]  # (all inputs present, task)
        ready: dict[int, list[tuple[float, int]]] = {device: [] for device in set(placement)}
        inputs_s = [0.0] * (2 * self.size)
        free_s = dict.fromkeys(ready, 0.0)
        now = 0.0
        while True:
            while arriving and arriving[0][0] <= now:
                _, task = heapq.heappop(arriving)
                heapq.heappush(ready[self.device(placement, task)], (-self.tail_s[task], task))
            heads = [(*queue[0], device) for device, queue in ready.items() if queue and free_s[device] <= now]
            if not heads:
                events = [free_s[device] for device, queue in ready.items() if queue] + [s for s, _ in arriving[:1]]
                if not events:
                    return max(free_s.values())
                now = min(events)
                continue
            _, task, device = min(heads)
            heapq.heappop(ready[device])
            end = free_s[device] = now + self.seconds[task]
            for successor, sent_s in self.successors[task]:
                crosses = self.device(placement, successor) != device
                inputs_s[successor] = max(inputs_s[successor], end + (sent_s if crosses else 0.0))
                missing[successor] -= 1
                if not missing[successor]:
                    heapq.heappush(arriving, (inputs_s[successor], successor))

    def lower_bound_s(self, prefix: Placement) -> float:
        """Lower bound of the makespan over all placements that begin with `prefix`.

        The larger of the critical path, with transfers between placed layers, and the work of the most loaded device.
        """
        placed, size = len(prefix), self.size
        starts = [0.0] * (2 * size)
        for task in self.order:
            device = prefix[task % size] if task % size < placed else -1
            for predecessor, sent_s in self.predecessors[task]:
                layer = predecessor % size
                crosses = device >= 0 and layer < placed and prefix[layer] != device
                end = starts[predecessor] + self.seconds[predecessor] + (sent_s if crosses else 0.0)
                starts[task] = max(starts[task], end)
        longest = max(starts[task] + self.tail_s[task] for task in range(2 * size))
        work: dict[int, float] = {}
        for layer, device in enumerate(prefix):
            work[device] = work.get(device, 0.0) + self.seconds[layer] + self.seconds[size + layer]
        return max(longest, *work.values()) if work else longest


def place(graph: LayerGraph, workers: int, bandwidth: float, max_steps: int = MAX_STEPS) -> PlacementResult:
    """The placement of least makespan of one micro-batch on `workers` equal devices.

    `bandwidth`: bytes per second between any two. `max_steps`: limit of the search, in layers visited.
    """
    return _PlacementSearch(TaskGraph(graph, bandwidth), workers, max_steps).solve()


class _PlacementSearch:
    """Greedy placement, local search, then branch and bound, until a limit on the layers visited or the time."""

    def __init__(self, tasks: TaskGraph, workers: int, max_steps: int) -> None:
        self.tasks, self.workers, self.max_steps = tasks, workers, max_steps
        self.steps = self.evaluated = 0
        self.best_s, self.best = tasks.makespan_s([0] * tasks.size), [0] * tasks.size

    def solve(self) -> PlacementResult:
        balanced_s = sum(self.tasks.seconds) / self.workers
        lower_s = max(self.tasks.lower_bound_s([]), balanced_s)
        self._evaluate(self._greedy())
        self._local_search(lower_s)
        exact = self._branch([], lower_s)
        bound_s = self.best_s if exact else min(self.best_s, lower_s)
        out_of_time = not exact and is_out_of_time()
        return PlacementResult(self.best_s, bound_s, tuple(self.best), self.evaluated, out_of_time)

    def _evaluate(self, placement: list[int]) -> bool:
        """Time a placement. True if it is the new incumbent."""
        self.evaluated += 1
        self.steps += self.tasks.size
        seconds = self.tasks.makespan_s(placement)
        if seconds < self.best_s * (1 - 1e-12):
            self.best_s, self.best = seconds, list(placement)
            return True
        return False

    def _greedy(self) -> list[int]:
        """Each layer, in topological order, on the device where its forward ends first."""
        tasks, placement, ends = self.tasks, list[int](), list[float]()
        free = [0.0] * self.workers
        for layer in range(tasks.size):
            options = []
            for device in range(min(self.workers, len(set(placement)) + 1)):
                inputs = [
                    ends[up] + (sent_s if placement[up] != device else 0.0) for up, sent_s in tasks.predecessors[layer]
                ]
                options.append((max([free[device], *inputs]) + tasks.seconds[layer], device))
            end, device = min(options)
            free[device] = end
            ends.append(end)
            placement.append(device)
        return placement

    def _local_search(self, lower_s: float) -> None:
        """Move single layers and unbranched chains to another device while that improves the makespan."""
        size, improved = self.tasks.size, True
        while improved and self.best_s > lower_s * (1 + 1e-12):
            improved = False
            for group in self._movable_groups():
                for device in range(min(self.workers, max(self.best) + 2)):
                    if self.steps > LOCAL_SEARCH_SHARE * self.max_steps or is_out_of_time():
                        return
                    moved = [device if layer in group else self.best[layer] for layer in range(size)]
                    improved |= moved != self.best and self._evaluate(moved)

    def _movable_groups(self) -> list[frozenset[int]]:
        """Unbranched chains of layers, then every layer alone."""
        size, groups = self.tasks.size, list[frozenset[int]]()
        chains: dict[int, list[int]] = {}
        for layer in range(size):
            ups = [up for up, _ in self.tasks.predecessors[layer]]
            forward_readers = [task for task, _ in self.tasks.successors[ups[0]] if task < size] if ups else []
            chains[layer] = chains[ups[0]] if len(ups) == 1 and len(forward_readers) == 1 else []
            chains[layer].append(layer)
        groups += [frozenset(chain) for chain in {id(chain): chain for chain in chains.values()}.values() if chain[1:]]
        return groups + [frozenset([layer]) for layer in range(size)]

    def _branch(self, prefix: list[int], lower_s: float) -> bool:
        """Search all placements that begin with `prefix`. False if the step or time limit cut the search short."""
        if lower_s >= self.best_s * (1 - 1e-12):
            self.evaluated += 1
            return True
        if len(prefix) == self.tasks.size:
            self._evaluate(prefix)
            return True
        if self.steps > self.max_steps or is_out_of_time():
            return False
        children = []
        for device in range(min(self.workers, max(prefix, default=-1) + 2)):
            self.steps += self.tasks.size
            children.append((max(lower_s, self.tasks.lower_bound_s([*prefix, device])), device))
        return all(self._branch([*prefix, device], bound_s) for bound_s, device in sorted(children))


def placed_stages(graph: LayerGraph, placement: Placement) -> tuple[PartitionStage, ...]:
    """One stage per device: its layers and its compute seconds."""
    stages = []
    for device in sorted(set(placement)):
        layers = tuple(layer for layer, own in enumerate(placement) if own == device)
        stages.append(PartitionStage(layers, 1, sum(graph.layers[i].compute_s for i in layers), device=device))
    return tuple(stages)
