"""Every candidate of `parallel: auto` measured, beside the one that is chosen: one model on one number of processes.

    python -m benchmarks.training_runs.exhaustive MODEL PROCESSES FILE

is run by `schedule_auto.py`, for slow links in a network namespace of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"
MODELS = {
    "digits' net": "nets.py:conv",
    "transformer": "nets.py:transformer",
    "wide MLP": "benchmarks.training_runs.exhaustive:wide_mlp",
}
BATCH, MICROBATCHES, WIDTH = 64, 4, 512
FINALISTS, ROUNDS, EPOCHS = 3, 30, 5


def wide_mlp() -> Any:
    """A wide multilayer perceptron over the digits' pictures."""
    from torch import nn

    hidden = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), *hidden, nn.Linear(WIDTH, 10))


@dataclass(frozen=True)
class Exhaustive:
    """Choose on all ranks, then measure every candidate, and let the best ones and the chosen one race."""

    model: str

    def __call__(self, rank: int) -> dict[str, Any] | None:
        import torch
        import torch.distributed as dist

        from jellybean.documents.training import OptimizerSpec, TrainingDocument
        from jellybean.training.choice.candidates import Candidate, enumerate_candidates
        from jellybean.training.choice.costs import MeasuredCosts
        from jellybean.training.choice.trial import measure, race
        from jellybean.training.errors import TrainingError
        from jellybean.training.preparation import prepare_rank
        from jellybean.training.processes.ranks import Rank, keep_first_ranks
        from jellybean.training.setup import decide_on_ranks, run_of, trial_of
        from jellybean_solver import SolverError

        document = TrainingDocument(
            kind="Training",
            model=MODELS[self.model],
            data="nets.py:digits",
            epochs=EPOCHS,
            batch=BATCH,
            microbatches=MICROBATCHES,
            optimizer=OptimizerSpec(name="adamw", lr=1e-3),
            parallel="auto",
        )
        world = dist.get_world_size()
        store = dist.PrefixStore("exhaustive", dist.distributed_c10d._get_default_store())
        prepared = prepare_rank(document, EXAMPLE, Rank(rank, 1, torch.device("cpu"), store=store))
        decision = decide_on_ranks(prepared)
        candidates, _ = enumerate_candidates(document, world)

        def asked(candidate: Candidate) -> Any:
            """What all ranks try for a candidate; None if the model cannot be cut so."""
            found: list[Any] = [None]
            if prepared.predictor is not None:
                with suppress(SolverError, TrainingError):
                    found = [(candidate.applied(document), prepared.predictor.choice(candidate, MeasuredCosts()))]
            dist.broadcast_object_list(found, src=0)
            return found[0]

        seconds: dict[Candidate, float] = {}
        for candidate in candidates:
            if (each := asked(candidate)) is not None:
                trial = trial_of(prepared, *each)
                seconds[candidate] = measure(trial, each[1].costs).iteration_s
                trial.close()
        chosen = _chosen(decision.document, candidates)
        by_time = sorted(seconds, key=seconds.__getitem__)
        leaders = {one.processes: one for one in reversed(by_time)}.values()
        best = dict.fromkeys([*by_time[:FINALISTS], *leaders])
        agreed: list[Any] = [[chosen, *(one for one in best if one != chosen)]]
        dist.broadcast_object_list(agreed, src=0)
        trials = [trial_of(prepared, *asked(one)) for one in agreed[0]]
        raced = dict(zip(agreed[0], race(trials, ROUNDS), strict=True))
        for trial in trials:
            trial.close()
        kept = keep_first_ranks(prepared.rank, decision.document)
        idle = _trained_idle(run_of(prepared, decision.document, kept, decision.choice)) if kept is not None else []
        if decision.document.ranks < world:  # all ranks end together
            if kept is not None:
                dist.destroy_process_group()
            dist.init_process_group("gloo", store=dist.PrefixStore("end", store), rank=rank, world_size=world)
        if rank:
            return None
        medians = {one: MICROBATCHES * shown.microbatch_s for one, shown in raced.items()}
        return {
            "chosen": str(chosen),
            "processes": chosen.processes,
            "candidates": len(seconds),
            "chosen_s": medians[chosen],
            "best": str(min(medians, key=medians.__getitem__)),
            "best_s": min(medians.values()),
            "worst_s": max(seconds.values()),
            "predicted_idle": decision.choice.bubble,
            "idle": statistics.median(idle),
            "note": decision.note,
        }


def _chosen(document: Any, candidates: list[Any]) -> Any:
    sizes = (document.devices, document.replicas, document.microbatches)
    return next(one for one in candidates if one.sizes == sizes and one.schedule == document.schedule)


def _trained_idle(run: Any) -> list[float]:
    """Measured idle time of the epochs of the run itself."""
    from jellybean.training.epoch import EpochStart, run_epoch
    from jellybean.training.optimization.lr_schedules import make_lr_schedule

    document = run.document
    lr = make_lr_schedule(document.lr_schedule, run.optimizer, run.sampler.updates, document.epochs)
    idle = [run_epoch(run, document, EpochStart(epoch), lr, lambda losses: None).idle for epoch in range(EPOCHS)]
    run.transport.close()
    return idle


def main() -> None:
    """Measure one case, and write it as JSON."""
    from tests.integration.training.ranks import run_ranks

    os.environ["OMP_NUM_THREADS"] = "1"
    model, processes, path = sys.argv[1:]
    (found,) = run_ranks(int(processes), [Exhaustive(model)], seconds=1500)
    Path(path).write_text(json.dumps(found[0]), encoding="utf-8")


if __name__ == "__main__":
    main()
