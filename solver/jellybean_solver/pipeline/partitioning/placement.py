"""Which device each layer of a model with branches is on, so that branches run at once: device placement.

One micro-batch goes forward and backward through the model. A layer's output goes once to each other device that reads
it, its gradient back, while the devices compute. A free device begins, of the passes that may begin there, the one with
the longest way to the end (list scheduling). A placement takes what that simulation says; the least of all is found by
branch and bound over the layers in their order. Where that would take too long, a gap is told: no placement is faster
than the longest way through the model or than its work spread evenly.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph
from jellybean_solver.pipeline.partitioning.stages import Stage

MOST_STEPS = 400_000  # layers looked at; then the best placement so far is the answer
MOVES_SHARE = 0.3  # of the steps, for moving layers of a good placement
Devices = Sequence[int]


@dataclass(frozen=True, slots=True)
class Placed:
    """`bound_s`: no placement is faster. `looked_at`: placements that were timed or ruled out."""

    seconds: float
    bound_s: float
    devices: tuple[int, ...]
    looked_at: int


class Passes:
    """A forward and a backward of each layer as tasks: `needs[task]`: (task, bytes that cross where devices differ)."""

    def __init__(self, graph: LayerGraph, bandwidth: float) -> None:
        self.size = size = len(graph.layers)
        self.bandwidth = bandwidth
        self.seconds = [one.forward_s for one in graph.layers] + [one.backward_s for one in graph.layers]
        self.needs: list[list[tuple[int, float]]] = [[] for _ in range(2 * size)]
        self.gives: list[list[tuple[int, float]]] = [[] for _ in range(2 * size)]
        pairs = [(up, down, graph.layers[up].activation_bytes / bandwidth) for up, down in graph.edges]
        links = [(up, down, sent) for up, down, sent in pairs]
        links += [(size + down, size + up, sent) for up, down, sent in pairs]
        links += [(layer, size + layer, 0.0) for layer in range(size)]
        for first, then, sent in links:
            self.needs[then].append((first, sent))
            self.gives[first].append((then, sent))
        self.order = [*range(size), *reversed(range(size, 2 * size))]
        self.way_s = [0.0] * (2 * size)  # to the end, the task itself included
        for task in reversed(self.order):
            after = max((self.way_s[then] for then, _ in self.gives[task]), default=0.0)
            self.way_s[task] = self.seconds[task] + after

    def device(self, devices: Devices, task: int) -> int:
        return devices[task % self.size]

    def makespan_s(self, devices: Devices) -> float:
        """By list scheduling: one start at a time, the earliest there is."""
        waiting = [len(needs) for needs in self.needs]
        coming = [(0.0, task) for task, count in enumerate(waiting) if not count]  # when all is there
        ready: dict[int, list[tuple[float, int]]] = {device: [] for device in set(devices)}
        there_s = [0.0] * (2 * self.size)
        free_s = dict.fromkeys(ready, 0.0)
        now = 0.0
        while True:
            while coming and coming[0][0] <= now:
                _, task = heapq.heappop(coming)
                heapq.heappush(ready[self.device(devices, task)], (-self.way_s[task], task))
            heads = [(*own[0], device) for device, own in ready.items() if own and free_s[device] <= now]
            if not heads:
                nexts = [free_s[device] for device, own in ready.items() if own] + [come for come, _ in coming[:1]]
                if not nexts:
                    return max(free_s.values())
                now = min(nexts)
                continue
            _, task, device = min(heads)
            heapq.heappop(ready[device])
            end = free_s[device] = now + self.seconds[task]
            for then, sent in self.gives[task]:
                crosses = self.device(devices, then) != device
                there_s[then] = max(there_s[then], end + (sent if crosses else 0.0))
                waiting[then] -= 1
                if not waiting[then]:
                    heapq.heappush(coming, (there_s[then], then))

    def least_s(self, devices: Devices) -> float:
        """No placement that begins so is faster: the longest way, or a device's work between what must come before and
        after it; layers not yet placed send nothing."""
        placed, size = len(devices), self.size
        begins = [0.0] * (2 * size)
        for task in self.order:
            own = devices[task % size] if task % size < placed else -1
            for first, sent in self.needs[task]:
                from_ = first % size
                crosses = own >= 0 and from_ < placed and devices[from_] != own
                begins[task] = max(begins[task], begins[first] + self.seconds[first] + (sent if crosses else 0.0))
        longest = max(begins[task] + self.way_s[task] for task in range(2 * size))
        work: dict[int, float] = {}
        for layer, device in enumerate(devices):
            work[device] = work.get(device, 0.0) + self.seconds[layer] + self.seconds[size + layer]
        return max(longest, *work.values()) if work else longest


def place(graph: LayerGraph, workers: int, bandwidth: float, most_steps: int = MOST_STEPS) -> Placed:
    """The placement of least time for one micro-batch, on that many alike devices."""
    return _Search(Passes(graph, bandwidth), workers, most_steps).found()


class _Search:
    def __init__(self, passes: Passes, workers: int, most_steps: int) -> None:
        self.passes, self.workers, self.most_steps = passes, workers, most_steps
        self.steps = self.looked_at = 0
        self.best_s, self.best = passes.makespan_s([0] * passes.size), [0] * passes.size

    def found(self) -> Placed:
        spread_s = sum(self.passes.seconds) / self.workers
        least_s = max(self.passes.least_s([]), spread_s)
        self._try(self._greedy())
        self._move(least_s)
        exact = self._below([], least_s)
        bound_s = self.best_s if exact else min(self.best_s, least_s)
        return Placed(self.best_s, bound_s, tuple(self.best), self.looked_at)

    def _try(self, devices: list[int]) -> bool:
        self.looked_at += 1
        self.steps += self.passes.size
        seconds = self.passes.makespan_s(devices)
        if seconds < self.best_s * (1 - 1e-12):
            self.best_s, self.best = seconds, list(devices)
            return True
        return False

    def _greedy(self) -> list[int]:
        """Each layer where its forward can end first, in their order."""
        passes, devices, ends = self.passes, list[int](), list[float]()
        free = [0.0] * self.workers
        for layer in range(passes.size):
            found = []
            for device in range(min(self.workers, len(set(devices)) + 1)):
                come = [ends[up] + (sent if devices[up] != device else 0.0) for up, sent in passes.needs[layer]]
                found.append((max([free[device], *come]) + passes.seconds[layer], device))
            end, device = min(found)
            free[device] = end
            ends.append(end)
            devices.append(device)
        return devices

    def _move(self, least_s: float) -> None:
        """Runs of layers (the rest of a branch among them) to another device, as long as that helps."""
        size, better = self.passes.size, True
        while better and self.best_s > least_s * (1 + 1e-12):
            better = False
            for run in self._runs():
                for device in range(min(self.workers, max(self.best) + 2)):
                    if self.steps > MOVES_SHARE * self.most_steps:
                        return
                    moved = [device if layer in run else self.best[layer] for layer in range(size)]
                    better |= moved != self.best and self._try(moved)

    def _runs(self) -> list[frozenset[int]]:
        """Every layer alone, and chains of layers without a branch."""
        size, runs = self.passes.size, list[frozenset[int]]()
        chains: dict[int, list[int]] = {}
        for layer in range(size):
            ups = [up for up, _ in self.passes.needs[layer]]
            alone = len(ups) == 1 and len([then for then, _ in self.passes.gives[ups[0]] if then < size]) == 1
            chains[layer] = chains[ups[0]] if alone else []
            chains[layer].append(layer)
        runs += [frozenset(chain) for chain in {id(chain): chain for chain in chains.values()}.values() if chain[1:]]
        return runs + [frozenset([layer]) for layer in range(size)]

    def _below(self, devices: list[int], least_s: float) -> bool:
        """All placements that begin so; whether none was left out for want of time."""
        if least_s >= self.best_s * (1 - 1e-12):
            self.looked_at += 1
            return True
        if len(devices) == self.passes.size:
            self._try(devices)
            return True
        if self.steps > self.most_steps:
            return False
        ways = []
        for device in range(min(self.workers, max(devices, default=-1) + 2)):
            self.steps += self.passes.size
            ways.append((max(least_s, self.passes.least_s([*devices, device])), device))
        return all(self._below([*devices, device], seconds) for seconds, device in sorted(ways))


def placed_stages(graph: LayerGraph, devices: Devices) -> tuple[Stage, ...]:
    """The layers of each device, and how long it computes."""
    found = []
    for device in sorted(set(devices)):
        layers = tuple(layer for layer, own in enumerate(devices) if own == device)
        found.append(Stage(layers, 1, sum(graph.layers[i].both_s for i in layers), device=device))
    return tuple(found)
