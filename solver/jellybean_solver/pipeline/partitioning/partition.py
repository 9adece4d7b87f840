"""Entry of the partitioners: cuts a model into pipeline stages that minimise an objective; stages may be replicated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from jellybean_solver.errors import OutOfTimeError, SolverError
from jellybean_solver.pipeline.partitioning.alpa import AlpaPartitioner, ReplicatedStages, submeshes
from jellybean_solver.pipeline.partitioning.bottleneck_search import BottleneckSearch
from jellybean_solver.pipeline.partitioning.candidate_stages import CandidateStages
from jellybean_solver.pipeline.partitioning.cut_pruning import CutCosts, pruned_candidates, spread_cuts
from jellybean_solver.pipeline.partitioning.cut_short import CutShortError
from jellybean_solver.pipeline.partitioning.dapple import least_iteration
from jellybean_solver.pipeline.partitioning.device_line import DeviceLine
from jellybean_solver.pipeline.partitioning.device_memory import MemoryLimit
from jellybean_solver.pipeline.partitioning.layer_graph import LayerGraph, enumerate_cuts
from jellybean_solver.pipeline.partitioning.pipedream import PipeDreamPartitioner, least_memory
from jellybean_solver.pipeline.partitioning.placement import place, placed_stages
from jellybean_solver.pipeline.partitioning.settings import DEFAULT_SETTINGS, PartitionSettings
from jellybean_solver.pipeline.partitioning.sharded_stages import ShardedStages
from jellybean_solver.pipeline.partitioning.stage_costs import (
    StageCost,
    collective_cost,
    overlapped_cost,
    sequential_cost,
)
from jellybean_solver.pipeline.partitioning.stages import Partition, PartitionStage, TopologyLevel
from jellybean_solver.time_limit import work_limit

STAGE_COSTS: dict[str, StageCost] = {"slowest-stage": sequential_cost, "pipedream-paper": overlapped_cost}
COLLECTIVE_OBJECTIVES = ("slowest-stage", "alpa-inter")  # accept `all_reduce`
MEMORY_OBJECTIVES = (*STAGE_COSTS, "alpa", "alpa-inter", "dapple")  # accept a memory `limit`
ITERATION_OBJECTIVES = ("dapple", "alpa", "alpa-inter")  # require `microbatches`, the number per iteration
LINE_OBJECTIVES = ("slowest-stage", "latency")  # accepted by `partition_line`
OBJECTIVES = (*STAGE_COSTS, *ITERATION_OBJECTIVES, "balance", "latency", "branches")
MAX_WORKERS = 4096


class NothingFitsError(SolverError):
    """No partition keeps every device within its memory."""


def partition(
    graph: LayerGraph,
    levels: Sequence[TopologyLevel],
    *,
    objective: str = "slowest-stage",
    limit: MemoryLimit | None = None,
    microbatches: int | None = None,
    all_reduce: str | None = None,
    settings: PartitionSettings = DEFAULT_SETTINGS,
) -> Partition:
    """The partition with the least objective on the workers of `levels` (lowest level first), each within `limit`.

    `microbatches`: per iteration, for the iteration objectives. `all_reduce`: the collective that sums the gradients
    of replicas, in place of the objective's own cost model. At the time limit of the work the best partition so far.
    SolverError for invalid arguments; NothingFitsError, with the memory that would suffice, if no partition fits;
    OutOfTimeError if the time limit left none.
    """
    _check(graph, levels, objective, limit, microbatches)
    if all_reduce is not None and objective not in COLLECTIVE_OBJECTIVES:
        raise SolverError(f"a choice of all-reduce goes with {', '.join(COLLECTIVE_OBJECTIVES)}, not with {objective}")
    cost = STAGE_COSTS.get(objective, sequential_cost) if all_reduce is None else collective_cost(all_reduce)
    request = _Request(graph, levels, objective, limit, microbatches or 1, settings)
    if objective == "branches":
        return _placed(request)
    searches: dict[str, Callable[[_Request], Partition]] = {
        "alpa": _alpa,
        "alpa-inter": partial(_alpa_inter, cost=cost),
        "dapple": _dapple,
        "balance": _balanced,
    }
    search = searches.get(objective, partial(_slowest_stage, cost=cost))
    return _in_time(lambda few: search(replace(request, few=few)), objective, request.least_s, settings)


def _in_time(
    search: Callable[[int | None], Partition], objective: str, least_s: float, settings: PartitionSettings
) -> Partition:
    """The result of a search; under a time limit it searches a few cuts first, and the best so far is the result.

    `search`: over so many evenly spread cuts, or all. `least_s`: lower bound of the objective.
    """
    if work_limit().left() is None:
        return search(None)
    best: Partition | None = None
    for few in (*settings.first_cuts, None):
        try:
            result = search(few)
        except NothingFitsError:
            if few is None and best is None:
                raise
            continue
        except CutShortError as error:
            seconds, stages = error.found or (math.inf, ())
            if stages:
                result = Partition(seconds, min(seconds, least_s), stages, few or 0, objective)
                best = result if best is None else _better(best, result)
            break
        best = result if best is None else _better(best, result)
        if best.gap == 0.0 or few is None:
            return best
    if best is None:
        raise OutOfTimeError(f"no partition for {objective} was found in the time allowed; allow more time")
    return replace(best, out_of_time=best.gap > 0.0)


def _better(one: Partition, two: Partition) -> Partition:
    """The partition of less objective, `two` if it is proven optimal; both lower bounds hold for it."""
    if two.gap == 0.0:
        return two
    best = two if two.objective_s < one.objective_s else one
    return replace(best, bound_s=min(best.objective_s, max(one.bound_s, two.bound_s)))


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of `partition` that every objective needs."""

    graph: LayerGraph
    levels: Sequence[TopologyLevel]
    objective: str
    limit: MemoryLimit | None
    microbatches: int
    settings: PartitionSettings
    few: int | None = None  # search only so many evenly spread cuts

    def cuts(self, most: int, *, free_idle: bool = False) -> tuple[Sequence[int], bool]:
        """The cuts to search, and True if they are all that matter; `most`, `free_idle`: as of `enumerate_cuts`."""
        if self.few is None:
            return enumerate_cuts(self.graph, most, free_idle=free_idle)
        cuts, exact = enumerate_cuts(self.graph, min(most, self.few**2), free_idle=free_idle)
        if len(cuts) <= self.few:
            return cuts, exact
        return spread_cuts(CutCosts(self.graph, cuts), self.few), False

    def result(
        self, found: tuple[float, tuple[PartitionStage, ...]], candidates: CandidateStages, cuts: int, *, exact: bool
    ) -> Partition:
        """The `Partition` with its objective as lower bound; raises NothingFitsError if the objective is infinite.

        `found`: objective in seconds, and stages. `cuts`: number evaluated. `exact`: no other cut can be better.
        """
        best, stages = found
        if not math.isfinite(best):
            raise _nothing_fits(self, candidates, proven=exact)
        return Partition(best, best, stages, cuts, self.objective)

    def bounded(self, result: Partition) -> Partition:
        """The result of an inexact search with its lower bound."""
        return replace(result, bound_s=min(result.objective_s, self.least_s))

    @property
    def least_s(self) -> float:
        """Lower bound of the objective: all work spread evenly over all workers."""
        work_s = sum(layer.compute_s for layer in self.graph.layers)
        rounds = self.microbatches if self.objective in ITERATION_OBJECTIVES else 1
        return rounds * work_s / math.prod(level.count for level in self.levels)


def _slowest_stage(request: _Request, cost: StageCost) -> Partition:
    """Minimise the slowest stage (PipeDream). Cuts are pruned first; this is lossless unless too many remain."""
    graph, levels, limit, settings = request.graph, request.levels, request.limit, request.settings

    def solve(
        candidates: CandidateStages, bound_s: float, *, approximate: bool = False
    ) -> tuple[float, tuple[PartitionStage, ...]]:
        if len(levels) == 1 and levels[0].count >= settings.binary_search_workers:
            return BottleneckSearch(candidates, levels[0], cost, limit, bound_s, approximate=approximate).solve()
        return PipeDreamPartitioner(candidates, levels, cost, limit, bound_s).solve()

    cuts, complete = request.cuts(settings.max_pruned_cuts, free_idle=limit is None)
    candidates, bound_s, lossless = pruned_candidates(
        graph, cuts, levels, lambda coarse, bound_s: solve(coarse, bound_s, approximate=True)[0], settings
    )
    exact = complete and lossless
    result = request.result(solve(candidates, bound_s), candidates, len(cuts), exact=exact)
    return result if exact else request.bounded(result)


def _alpa(request: _Request) -> Partition:
    """Alpa's two passes together: stages on submeshes, each with its operators split over the submesh.

    The alternatives are what either pass costs alone: one stage on all devices, and stages of one device each. With
    more cuts than the limit, those of the inter-operator pass and evenly spread ones are searched.
    """
    graph, levels, limit, settings = request.graph, request.levels, request.limit, request.settings
    cuts, exact = request.cuts(settings.max_cuts)
    microbatches = request.microbatches
    devices, meshes = math.prod(level.count for level in levels), submeshes(levels)
    every = CandidateStages(graph, cuts)
    alone_s, alone = AlpaPartitioner(every, ReplicatedStages(every, meshes[:1], limit), devices, microbatches).solve()
    if len(cuts) > settings.sharded_cuts:
        few = {*spread_cuts(CutCosts(graph, cuts), settings.sharded_cuts), *_stage_cuts(alone)}
        cuts, exact = tuple(sorted(few, key=int.bit_count)), False
    candidates = CandidateStages(graph, cuts)
    sharded = ShardedStages(graph, candidates, meshes, microbatches, limit)
    found = AlpaPartitioner(candidates, sharded, devices, microbatches).solve()
    result = request.result(found, candidates, len(cuts), exact=exact)
    result = result if exact else request.bounded(result)
    whole_s = microbatches * float(sharded.seconds(len(meshes) - 1, 0)[0, -1])
    return replace(result, alternatives={"intra-operator": whole_s, "inter-operator": alone_s})


def _stage_cuts(stages: Sequence[PartitionStage]) -> list[int]:
    """The cuts after each stage, as bit sets."""
    bits = [sum(1 << layer for layer in stage.layers) for stage in stages]
    return list(itertools.accumulate(bits))


def _alpa_inter(request: _Request, cost: StageCost) -> Partition:
    """Alpa's inter-operator pass: the sum of the stages plus (B - 1) times the slowest, for B micro-batches.

    The devices of a submesh are replicas. A preliminary solve over few cuts gives an upper bound. Every device has a
    stage, so a stage of idle layers saves another stage's all-reduce: moving these layers across cuts (`free_idle`) is
    not exact here; it is done only if there are too many cuts for an exact search.
    """
    graph, levels, limit, settings = request.graph, request.levels, request.limit, request.settings
    cuts, exact = request.cuts(settings.max_cuts)
    if not exact and limit is None:
        cuts, _ = request.cuts(settings.max_cuts, free_idle=True)
    microbatches = request.microbatches
    bound_s, coarse = math.inf, settings.coarse_cuts[0]
    devices = math.prod(level.count for level in levels)
    if len(cuts) > coarse:
        few = CandidateStages(graph, spread_cuts(CutCosts(graph, cuts), coarse))
        times = ReplicatedStages(few, submeshes(levels), limit, cost)
        bound_s, _ = AlpaPartitioner(few, times, devices, microbatches).solve()
    candidates = CandidateStages(graph, cuts)
    times = ReplicatedStages(candidates, submeshes(levels), limit, cost)
    found = AlpaPartitioner(candidates, times, devices, microbatches).solve(bound_s)
    result = request.result(found, candidates, len(cuts), exact=exact)
    return result if exact else request.bounded(result)


def _dapple(request: _Request) -> Partition:
    """Minimise the latency of an iteration (DAPPLE).

    Sending fewer bytes may lengthen an iteration, so moving idle layers across cuts (`free_idle`) is not exact here; it
    is done only if there are too many cuts for an exact search.
    """
    graph, levels, limit, settings = request.graph, request.levels, request.limit, request.settings
    cuts, exact = request.cuts(settings.max_cuts)
    if not exact:
        cuts, _ = request.cuts(settings.max_cuts, free_idle=True)
    best, stages, evaluated = least_iteration(graph, cuts, levels, request.microbatches, limit, settings)
    exact = exact and evaluated == len(cuts)
    result = request.result((best, stages), CandidateStages(graph, cuts), evaluated, exact=exact)
    return result if exact else request.bounded(result)


def _balanced(request: _Request) -> Partition:
    """Minimise the slowest stage over contiguous blocks of the topological order, transfers ignored (torchgpipe)."""
    prefixes, _ = enumerate_cuts(request.graph, 0)
    cuts = _spread(request.graph, prefixes, request.few or request.settings.max_line_cuts)
    candidates = CandidateStages(request.graph, cuts)
    workers = math.prod(level.count for level in request.levels)
    line = DeviceLine(candidates, [1.0] * workers, [math.inf] * (workers - 1), latency=False, transfers=False)
    result = request.result(line.solve(), candidates, len(cuts), exact=len(cuts) == len(prefixes))
    return result if len(cuts) == len(prefixes) else request.bounded(result)


def _spread(graph: LayerGraph, cuts: Sequence[int], most: int) -> Sequence[int]:
    """The cuts, or at most so many evenly spread ones, so that matrices of all pairs have room."""
    return cuts if len(cuts) <= most else spread_cuts(CutCosts(graph, cuts), most)


def _placed(request: _Request) -> Partition:
    """Device placement: every layer may be on any device, so that parallel branches run at the same time."""
    level = request.levels[0]
    placement = place(request.graph, level.count, level.bandwidth)
    stages = placed_stages(request.graph, placement.devices)
    result = Partition(placement.seconds, placement.bound_s, stages, placement.evaluated, request.objective)
    return replace(result, out_of_time=placement.out_of_time)


def partition_line(
    graph: LayerGraph,
    speeds: Sequence[float],
    bandwidths: Sequence[float],
    *,
    objective: str = "latency",
    settings: PartitionSettings = DEFAULT_SETTINGS,
) -> Partition:
    """The partition with the least objective over a line of unequal devices, in their order.

    `speeds`, `bandwidths`: see `DeviceLine`. The time limit of the work and errors: as of `partition`.
    """
    if objective not in LINE_OBJECTIVES:
        raise SolverError(f"unequal devices go with {' and '.join(LINE_OBJECTIVES)}, not with {objective}")
    if not graph.layers:
        raise SolverError("the model has no layers")
    if not all(0 < bandwidth < math.inf for bandwidth in bandwidths):
        raise SolverError("a bandwidth must be above 0 bytes per second")
    latency = objective == "latency"
    work_s = sum(layer.forward_s if latency else layer.compute_s for layer in graph.layers)
    least_s = work_s / max(1e-300, max(speeds, default=0.0) if latency else sum(speeds))

    def search(few: int | None) -> Partition:
        most = settings.max_cuts if few is None else min(settings.max_cuts, few**2)
        every, exact = enumerate_cuts(graph, most, free_idle=True)
        cuts = _spread(graph, every, few or settings.max_line_cuts)
        best, stages = DeviceLine(CandidateStages(graph, cuts), speeds, bandwidths, latency=latency).solve()
        bound_s = best if exact and len(cuts) == len(every) else min(best, least_s)
        return Partition(best, bound_s, stages, len(cuts), objective)

    return _in_time(search, objective, least_s, settings)


def _check(
    graph: LayerGraph,
    levels: Sequence[TopologyLevel],
    objective: str,
    limit: MemoryLimit | None,
    microbatches: int | None,
) -> None:
    if objective not in OBJECTIVES:
        raise SolverError(f"unknown objective {objective}; there are {', '.join(OBJECTIVES)}")
    if objective == "latency":
        raise SolverError("latency is for unequal devices in a line: give their speeds")
    if objective in ITERATION_OBJECTIVES and (microbatches is None or microbatches < 1):
        raise SolverError(f"{objective} minimises an iteration: say how many micro-batches it has")
    if limit is not None and objective not in MEMORY_OBJECTIVES:
        raise SolverError(f"a memory limit goes with {', '.join(MEMORY_OBJECTIVES)}, not with {objective}")
    if not graph.layers:
        raise SolverError("the model has no layers")
    if objective == "branches" and len(levels) > 1:
        raise SolverError("branches are placed on equal devices with equal links: give one level of workers")
    workers = math.prod(level.count for level in levels)
    if not levels or min(level.count for level in levels) < 1 or workers > MAX_WORKERS:
        raise SolverError(f"{workers} workers: there must be 1 to {MAX_WORKERS}, at least one at each level")
    if not all(0 < level.bandwidth < math.inf for level in levels):
        raise SolverError("a bandwidth must be above 0 bytes per second")


def _nothing_fits(request: _Request, candidates: CandidateStages, *, proven: bool) -> NothingFitsError:
    """The error to raise, with the bytes per device that would suffice. `proven`: all cuts were evaluated.

    With many cuts, the sufficient memory is computed over a few of them.
    """
    limit, settings = request.limit, request.settings
    if limit is None:
        raise AssertionError("without a limit everything fits")
    scope = "no partition" if proven else f"no partition at the {candidates.size:,} cuts that were evaluated"
    message = f"{scope} fits into {limit.limit_bytes:,.0f} bytes a device under {limit.schedule}"
    if request.objective in STAGE_COSTS:
        few = candidates
        if candidates.size > settings.coarse_cuts[-1]:
            costs = CutCosts(request.graph, candidates.cuts)
            few = CandidateStages(request.graph, spread_cuts(costs, settings.coarse_cuts[0]))
        with suppress(CutShortError):  # at the time limit the message goes without
            message = f"{message}; {least_memory(few, request.levels, limit):,.0f} would do"
    return NothingFitsError(f"{message}: take larger devices, more of them, or smaller micro-batches")
