"""Cuts a model into pipeline stages, by the objective asked for; stages may be replicated."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jellybean_solver.errors import SolverError
from jellybean_solver.pipeline.partitioning.cut_narrowing import FEW, Outlines, narrowed, spread
from jellybean_solver.pipeline.partitioning.device_line import Straight
from jellybean_solver.pipeline.partitioning.device_memory import DeviceLimit
from jellybean_solver.pipeline.partitioning.iteration import least_iteration
from jellybean_solver.pipeline.partitioning.layer_graph import MOST_CUTS, MOST_NARROWED, LayerGraph, cuts
from jellybean_solver.pipeline.partitioning.one_level import OneLevel
from jellybean_solver.pipeline.partitioning.placement import place, placed_stages
from jellybean_solver.pipeline.partitioning.slowest_stage import (
    LeastMemory,
    SlowestStage,
    StageCost,
    paper_cost,
    summed_by,
    summed_cost,
)
from jellybean_solver.pipeline.partitioning.spans import Spans
from jellybean_solver.pipeline.partitioning.stages import Level, Partition, Stage
from jellybean_solver.pipeline.partitioning.submeshes import Submeshes

__all__ = [
    "ITERATIONS",
    "MOST_WORKERS",
    "OBJECTIVES",
    "Level",
    "NothingFitsError",
    "Partition",
    "Stage",
    "partition",
    "partition_line",
]

STAGE_COSTS: dict[str, StageCost] = {"slowest-stage": summed_cost, "pipedream-paper": paper_cost}
SUMMED = ("slowest-stage", "alpa")  # by which gradients may be summed in another way
LIMITED = (*STAGE_COSTS, "alpa", "dapple")  # by which devices' memory may be limited
ITERATIONS = ("dapple", "alpa")  # of a number of micro-batches
STRAIGHT = ("slowest-stage", "latency")  # over unlike devices
OBJECTIVES = (*STAGE_COSTS, *ITERATIONS, "balance", "latency", "branches")
MOST_WORKERS = 4096
SEARCHED_FROM = 32  # workers of one level: of fewer, all numbers of them are tried faster


class NothingFitsError(SolverError):
    """No partition keeps every device within its memory."""


def partition(
    graph: LayerGraph,
    levels: Sequence[Level],
    *,
    objective: str = "slowest-stage",
    limit: DeviceLimit | None = None,
    microbatches: int | None = None,
    all_reduce: str | None = None,
    most_cuts: int | None = None,
) -> Partition:
    """The stages of least time over all workers of `levels` (lowest first), each within `limit`.

    `microbatches` of an iteration, for the objectives that are about one. `all_reduce`: the collective by which
    replicas sum gradients, in place of the objective's own cost. SolverError for what cannot be asked;
    NothingFitsError, with how much would do, where memory is too small.
    """
    _check(graph, levels, objective, limit, microbatches)
    if all_reduce is not None and objective not in SUMMED:
        raise SolverError(f"a way to sum gradients goes with {', '.join(SUMMED)}, not with {objective}")
    cost = STAGE_COSTS.get(objective, summed_cost) if all_reduce is None else summed_by(all_reduce)
    if objective == "branches":
        return _placed(graph, levels)
    if objective in STAGE_COSTS:
        most = MOST_NARROWED if most_cuts is None else most_cuts
        return _slowest(graph, levels, objective, cost, limit, most)
    sets, complete = _cuts(graph, objective, limit, MOST_CUTS if most_cuts is None else most_cuts)
    spans = Spans(graph, sets)
    rounds = microbatches or 1
    if objective == "dapple":
        best, stages, looked = least_iteration(graph, sets, levels, rounds, limit)
        complete, sets = complete and looked == len(sets), sets[:looked]
    elif objective == "alpa":
        known_s = math.inf
        if len(sets) > FEW[0]:
            few = Spans(graph, spread(Outlines(graph, sets), FEW[0]))
            known_s, _ = Submeshes(few, levels, rounds, limit, cost).solve()
        best, stages = Submeshes(spans, levels, rounds, limit, cost).solve(known_s)
    else:
        best, stages = Straight(spans, *_alike(levels), latency=False, sent=False).solve()
        complete = True
    if not math.isfinite(best):
        raise _too_small(graph, spans, levels, limit, objective, complete)
    bound = best if complete else min(best, rounds * _bound(graph, levels))
    return Partition(best, bound, stages, len(sets), objective)


def _cuts(graph: LayerGraph, objective: str, limit: DeviceLimit | None, most_cuts: int) -> tuple[tuple[int, ...], bool]:
    """Those to look at, and whether no other could be better. Alpa's cuts cost nothing; DAPPLE's figure may rise where
    less is sent, so what idle layers make cheap is no proof there."""
    if objective == "balance":
        return cuts(graph, 0)
    sets, complete = cuts(graph, most_cuts, free_idle=objective == "alpa" and limit is None)
    if objective == "dapple" and not complete:
        return cuts(graph, most_cuts, free_idle=True)[0], False
    return sets, complete


def _placed(graph: LayerGraph, levels: Sequence[Level]) -> Partition:
    """Every layer on a device of its own choice."""
    found = place(graph, levels[0].count, levels[0].bandwidth)
    stages = placed_stages(graph, found.devices)
    return Partition(found.seconds, found.bound_s, stages, found.looked_at, "branches")


def _slowest(
    graph: LayerGraph,
    levels: Sequence[Level],
    objective: str,
    cost: StageCost,
    limit: DeviceLimit | None,
    most_cuts: int,
) -> Partition:
    """The slowest stage is fastest. All cuts stand behind the answer, though few of them are looked at in pairs."""

    def solve(some: Spans, most_s: float, *, rough: bool = False) -> tuple[float, tuple[Stage, ...]]:
        if len(levels) == 1 and levels[0].count >= SEARCHED_FROM:
            return OneLevel(some, levels[0], cost, limit, most_s, rough=rough).solve()
        return SlowestStage(some, levels, cost, limit, most_s).solve()

    sets, complete = cuts(graph, most_cuts, free_idle=limit is None)
    spans, known_s, all_of_them = narrowed(graph, sets, levels, lambda few, most_s: solve(few, most_s, rough=True)[0])
    best, stages = solve(spans, known_s)
    if not math.isfinite(best):
        raise _too_small(graph, spans, levels, limit, objective, complete and all_of_them)
    bound = best if complete and all_of_them else min(best, _bound(graph, levels))
    return Partition(best, bound, stages, len(sets), objective)


def partition_line(
    graph: LayerGraph,
    speeds: Sequence[float],
    bandwidths: Sequence[float],
    *,
    objective: str = "latency",
    most_cuts: int = MOST_CUTS,
) -> Partition:
    """The stages of least time on a line of unlike devices, in their order; see `Straight`."""
    if objective not in STRAIGHT:
        raise SolverError(f"unlike devices go with {' and '.join(STRAIGHT)}, not with {objective}")
    if not graph.layers:
        raise SolverError("the model has no layers")
    if not all(0 < bandwidth < math.inf for bandwidth in bandwidths):
        raise SolverError("a bandwidth must be above 0 bytes per second")
    sets, complete = cuts(graph, most_cuts, free_idle=True)
    latency = objective == "latency"
    best, stages = Straight(Spans(graph, sets), speeds, bandwidths, latency=latency).solve()
    work = sum(layer.forward_s if latency else layer.both_s for layer in graph.layers)
    bound = best if complete else min(best, work / (max(speeds) if latency else sum(speeds)))
    return Partition(best, bound, stages, len(sets), objective)


def _alike(levels: Sequence[Level]) -> tuple[list[float], list[float]]:
    workers = math.prod(level.count for level in levels)
    return [1.0] * workers, [math.inf] * (workers - 1)


def _check(
    graph: LayerGraph, levels: Sequence[Level], objective: str, limit: DeviceLimit | None, microbatches: int | None
) -> None:
    if objective not in OBJECTIVES:
        raise SolverError(f"no objective is called {objective}; there are {', '.join(OBJECTIVES)}")
    if objective == "latency":
        raise SolverError("latency is about unlike devices in a line: give their speeds")
    if objective in ITERATIONS and (microbatches is None or microbatches < 1):
        raise SolverError(f"{objective} is about an iteration: say how many micro-batches it has")
    if limit is not None and objective not in LIMITED:
        raise SolverError(f"devices' memory can be limited with {', '.join(LIMITED)}, not with {objective}")
    if not graph.layers:
        raise SolverError("the model has no layers")
    if objective == "branches" and len(levels) > 1:
        raise SolverError("branches are placed on alike devices, all linked alike: give one level of workers")
    workers = math.prod(level.count for level in levels)
    if not levels or min(level.count for level in levels) < 1 or workers > MOST_WORKERS:
        raise SolverError(f"{workers} workers: there must be 1 to {MOST_WORKERS}, at least one at each level")
    if not all(0 < level.bandwidth < math.inf for level in levels):
        raise SolverError("a bandwidth must be above 0 bytes per second")


def _bound(graph: LayerGraph, levels: Sequence[Level]) -> float:
    """All work of a micro-batch spread evenly over all workers."""
    return sum(layer.both_s for layer in graph.layers) / math.prod(level.count for level in levels)


def _too_small(
    graph: LayerGraph,
    spans: Spans,
    levels: Sequence[Level],
    limit: DeviceLimit | None,
    objective: str,
    proven: bool,
) -> NothingFitsError:
    """`proven`: all cuts were looked at. What would do is that of a few cuts where there are many."""
    if limit is None:
        raise AssertionError("without a limit everything fits")
    which = "no partition" if proven else f"no partition at the {spans.size:,} cuts that were looked at"
    told = f"{which} fits into {limit.limit_bytes:,.0f} bytes a device under {limit.schedule}"
    if objective in STAGE_COSTS:
        few = spans if spans.size <= FEW[1] else Spans(graph, spread(Outlines(graph, spans.cuts), FEW[0]))
        least, _ = LeastMemory(few, levels, limit).solve()
        told = f"{told}; {least:,.0f} would do"
    return NothingFitsError(f"{told}: take larger devices, more of them, or smaller micro-batches")
