"""Training throughput of a GPT-2 of 30 M parameters on two processes, beside torch.distributed.pipelining.

Both train the same stage modules, cut by `jellybean train`, in turn, with 1F1B, AdamW and the same micro-batches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic

if TYPE_CHECKING:
    from jellybean.documents.training import TrainingDocument
    from jellybean.training.setup import RankRun

LAYERS, WIDTH, WORDS, TOKENS, ROWS, MICROBATCHES, ROUNDS = 12, 384, 12_000, 64, 16, 8, 15
LR = 1e-4
Step = Callable[[], None]


@benchmark
def gpt2(smoke: bool) -> Result:
    """Seconds per update of a 30 M parameter GPT-2 on two processes of one thread, beside torch's pipelining."""
    from tests.integration.training.ranks import run_ranks

    os.environ["OMP_NUM_THREADS"] = "1"
    rounds = 1 if smoke else ROUNDS
    (found,) = run_ranks(2, [InTurn(rounds)], seconds=3000)
    both = [[max(pair) for pair in zip(*(own.seconds[name] for own in found), strict=True)] for name in (0, 1)]
    ratios = sorted(other / here for here, other in zip(*both, strict=True))
    samples = [ROWS * TOKENS / median(own) for own in both]
    row = (
        f"{found[0].parameters / 1e6:.1f} M",
        f"{samples[0]:.0f}",
        f"{samples[1]:.0f}",
        f"{median(ratios):.3f}",
        f"{ratios[len(ratios) // 4]:.3f} to {ratios[-1 - len(ratios) // 4]:.3f}",
    )
    columns = ("parameters", "tokens/s", "tokens/s of torch", "speed over torch", "middle half of the rounds")
    return Result(
        title="Training GPT-2 on two processes",
        topic=Topic.TRAINING,
        method=f"GPT-2 of transformers ({LAYERS} layers of width {WIDTH}, {WORDS} words, untied) in two stages, one "
        f"thread each, 1F1B, {MICROBATCHES} micro-batches of {ROWS // MICROBATCHES} rows of {TOKENS} tokens, AdamW; "
        f"{rounds} rounds in turn, and the median of the rounds' ratios.",
        reference="torch.distributed.pipelining's Schedule1F1B on the same stage modules.",
        tables=(Table.of(columns, [row]),),
    )


def model() -> Any:
    """GPT-2 that returns its scores."""
    from torch import nn

    from tests.integration.training.models.zoo import _transformers

    own = _transformers()
    config = own.GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=6, vocab_size=WORDS, n_positions=TOKENS, bos_token_id=0, eos_token_id=0,
        tie_word_embeddings=False, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip

    class Scores(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
        def __init__(self) -> None:
            super().__init__()
            self.gpt2 = own.GPT2LMHeadModel(config)

        def forward(self, tokens: Any) -> Any:
            return self.gpt2(input_ids=tokens).logits

    return Scores()


def data() -> dict[str, Any]:
    import torch

    tokens = torch.randint(0, WORDS, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(0))
    rows = (tokens[:, :-1], tokens[:, 1:])
    return {"train": rows, "test": rows}


def loss(outputs: Any, targets: Any) -> Any:
    """Mean over tokens."""
    from torch.nn import functional

    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Timed:
    """Seconds of each round: here, and in torch."""

    seconds: tuple[Sequence[float], Sequence[float]]
    parameters: int


@dataclass(frozen=True)
class InTurn:
    """Updates here and in torch's pipelining, in turn, after one each that is not counted."""

    rounds: int

    def __call__(self, rank: int) -> Timed:
        import torch
        import torch.distributed as dist

        from jellybean.training.processes.ranks import Rank
        from jellybean.training.setup import set_up_run

        run = set_up_run(_document(), Path(), Rank(rank, 2, torch.device("cpu")))
        steps = (_here(run), _torch(run, rank))
        seconds: tuple[list[float], list[float]] = ([], [])
        for number in range(self.rounds + 1):
            for own, step in zip(seconds, steps, strict=True):
                dist.barrier()
                began = time.perf_counter()
                step()
                if number:
                    own.append(time.perf_counter() - began)
        run.transport.close()
        count = torch.tensor([float(sum(value.numel() for value in run.held[rank, 0].versions.parameters.values()))])
        dist.all_reduce(count)
        return Timed(seconds, int(count))


def _document() -> TrainingDocument:
    from jellybean.documents.training import LossSpec, OptimizerSpec, TrainingDocument

    return TrainingDocument(
        kind="Training",
        model=f"{__name__}:model",
        data=f"{__name__}:data",
        loss=LossSpec(function=f"{__name__}:loss"),
        epochs=1,
        batch=ROWS,
        microbatches=MICROBATCHES,
        optimizer=OptimizerSpec(name="adamw", lr=LR),
        devices=2,
        schedule="1f1b",
    )


def _here(run: RankRun) -> Step:
    import torch

    from jellybean.training.data.feed import IterationFeed
    from jellybean.training.data.rows import ReadPlan

    def step() -> None:
        feed = IterationFeed(run.data.train.read(ReadPlan(run.sampler)), 0, torch.device("cpu"), 0, 0, 0)
        run.interpreter.run(feed)

    return step


def _torch(run: RankRun, rank: int) -> Step:
    """torch's pipelining on a copy of this rank's stage. A stage's own arguments are the model's only one."""
    import torch
    from torch import nn
    from torch.distributed import pipelining

    held = run.held[rank, 0]
    reads_tokens = bool(held.inputs.arguments)

    class Stage(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
        def __init__(self) -> None:
            super().__init__()
            self.stage = deepcopy(held.module)

        def forward(self, *received: Any, tokens: Any = None) -> Any:
            found = self.stage(*received, *([tokens] if rank and reads_tokens else []))
            return found[0] if len(found) == 1 else found

    module = Stage()
    stage = pipelining.PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, MICROBATCHES, loss_fn=loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=LR)
    inputs, targets = data()["train"]

    def step() -> None:
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, **({"tokens": inputs} if reads_tokens else {}))
        optimizer.step()
        optimizer.zero_grad()

    return step
