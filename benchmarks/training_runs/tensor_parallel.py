"""Transformer layers with split weights, beside torch's parallelize_module with the same plan, on this machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic

if TYPE_CHECKING:
    import torch
    from torch import nn

PROCESSES, DEPTH, ROUNDS = (2, 4), 2, 25
SIZES = ((128, 4, 4, 32), (256, 8, 8, 64), (512, 8, 8, 128))  # width, heads, samples, tokens
_COLUMNS = ("processes", "width", "samples x tokens", "here (ms)", "torch (ms)", "throughput over torch's")


@benchmark
def tensor_parallel(smoke: bool) -> Result:
    """Seconds of forward and backward passes, in turn with torch's."""
    from tests.integration.training.ranks import run_ranks

    os.environ["OMP_NUM_THREADS"] = "1"
    sizes, rounds = (SIZES[:1], 3) if smoke else (SIZES, ROUNDS)
    rows: list[tuple[str, ...]] = []
    for processes in PROCESSES:
        measured = run_ranks(processes, [TimeLayers(*size, rounds) for size in sizes], seconds=900)
        for (width, _, samples, tokens), own in zip(sizes, measured, strict=True):
            here_s, torch_s = (statistics.median(seconds) for seconds in own[0])
            ratio = statistics.median(there / here for here, there in zip(*own[0], strict=True))
            times = (f"{1000 * here_s:.1f}", f"{1000 * torch_s:.1f}", f"{ratio:.2f}")
            rows.append((str(processes), str(width), f"{samples} x {tokens}", *times))
    return Result(
        title="Tensor parallelism of transformer layers",
        topic=Topic.TRAINING,
        method=f"{DEPTH} transformer layers, forward and backward, on processes of one thread, over gloo: medians of "
        f"{rounds} rounds in which both run in turn, from a barrier until all had ended; the ratio is the median over "
        "rounds. Both split the same layers (columns, then rows; heads) and have the same gradients, which is checked. "
        "Other programs shared the two cores.",
        reference="torch.distributed.tensor.parallel.parallelize_module, ColwiseParallel and RowwiseParallel.",
        tables=(Table.of(_COLUMNS, rows),),
    )


@dataclass(frozen=True)
class TimeLayers:
    """Time forward and backward passes here and by torch; returns both lists of seconds."""

    width: int
    heads: int
    samples: int
    tokens: int
    rounds: int

    def __call__(self, rank: int) -> tuple[list[float], list[float]]:
        import torch
        import torch.distributed as dist

        given = torch.randn(self.samples, self.tokens, self.width, generator=torch.Generator().manual_seed(0))
        runs = [_pass(self._split_here(rank), given), _pass(self._split_by_torch(), given)]
        results = [run() for run in runs]
        if not all(torch.allclose(one, other, rtol=1e-3, atol=1e-4) for one, other in zip(*results, strict=True)):
            raise AssertionError("the gradients differ")
        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(self.rounds + 2):
            for durations, run in zip(seconds, runs, strict=True):
                dist.barrier()
                began = time.perf_counter()
                run()
                dist.barrier()
                if turn > 1:  # the first turns make connections and buffers
                    durations.append(time.perf_counter() - began)
        return seconds

    def _layers(self) -> nn.Module:
        import torch
        from torch import nn

        from benchmarks.training_runs.transformer_layer import TransformerLayer

        torch.manual_seed(0)
        return nn.Sequential(*(TransformerLayer(self.width, self.heads) for _ in range(DEPTH)))

    def _split_here(self, rank: int) -> nn.Module:
        import torch
        import torch.distributed as dist

        from jellybean.pipeline.torch_graph import graph_facts
        from jellybean.pipeline.torch_trace import CallArguments, trace
        from jellybean.training.tensor_parallel.choice import choose_splits
        from jellybean.training.tensor_parallel.group import TensorGroup
        from jellybean.training.tensor_parallel.lowering import lower
        from jellybean.training.tensor_parallel.weights import SplitWeights

        example = torch.zeros(2, self.tokens, self.width)
        traced = trace(self._layers(), CallArguments.of((example,)), tracer="torch.fx")
        facts, world = graph_facts(traced, (example,)), dist.get_world_size()
        choice = choose_splits(traced.graph, facts, world, {})
        group = TensorGroup(world, rank, dist.group.WORLD)
        parameters = dict(traced.graph.named_parameters())
        weights = SplitWeights(group, [(parameters[name], split) for name, split in choice.weights.items()])
        module = lower(traced.graph, weights.splits, facts, group, {}).module
        weights.replace(module)
        return module

    def _split_by_torch(self) -> nn.Module:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        layers, mesh = self._layers(), init_device_mesh("cpu", (dist.get_world_size(),))
        columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
        rows = dict.fromkeys(("back", "down"), RowwiseParallel())
        for layer in layers:
            parallelize_module(layer, mesh, {**columns, **rows})
        return layers


def _pass(module: nn.Module, given: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
    """A forward and a backward pass, which returns the gradients of the norms' weights, which no process splits."""
    weights = [value for name, value in module.named_parameters() if "norm" in name]

    def run() -> list[torch.Tensor]:
        module.zero_grad(set_to_none=True)
        found = module(given)
        (found[0] if isinstance(found, tuple) else found).square().mean().backward()
        return [weight.grad for weight in weights if weight.grad is not None]

    return run
