"""Every candidate of `parallel: auto` measured, beside the one that is chosen: one model on one number of processes.

    python -m benchmarks.training_runs.exhaustive MODEL PROCESSES FILE

is run by `schedule_auto.py`, for slow links in a network namespace of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.training_runs.auto_cases import BATCH, EPOCHS, FINALISTS, MICROBATCHES, MODELS, ROUNDS
from jellybean.documents.training import OptimizerSpec, TrainingDocument
from jellybean.training.choice.candidates import Candidate, enumerate_candidates
from jellybean.training.choice.costs import MeasuredCosts
from jellybean.training.choice.decide import Decision
from jellybean.training.choice.schedule_choice import ScheduleChoice
from jellybean.training.choice.trial import Raced, measure, race
from jellybean.training.epoch import EpochStart, run_epoch
from jellybean.training.errors import TrainingError
from jellybean.training.optimization.lr_schedules import make_lr_schedule
from jellybean.training.preparation import PreparedRank, prepare_rank
from jellybean.training.processes.ranks import Rank, keep_first_ranks
from jellybean.training.setup import RankRun, decide_on_ranks, run_of, trial_of
from jellybean_solver import SolverError
from tests.integration.training.ranks import run_ranks

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"


@dataclass(frozen=True)
class Exhaustive:
    """Choose on all ranks, then measure every candidate, and let the best ones and the chosen one race."""

    model: str

    def __call__(self, rank: int) -> dict[str, Any] | None:
        document = _document(self.model)
        world = dist.get_world_size()
        store = dist.PrefixStore("exhaustive", dist.distributed_c10d._get_default_store())
        prepared = prepare_rank(document, EXAMPLE, Rank(rank, 1, torch.device("cpu"), store=store))
        candidates, _ = enumerate_candidates(document, world)
        decision = _decision(prepared, candidates)
        seconds = _trial_seconds(prepared, candidates)
        chosen = _chosen(decision.document, candidates)
        raced = _race(prepared, chosen, seconds)
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
            "split": sum(one.tensor > 1 for one in seconds),
            "chosen_s": medians[chosen],
            "best": str(min(medians, key=medians.__getitem__)),
            "best_s": min(medians.values()),
            "worst_s": max(seconds.values()),
            "predicted_idle": decision.choice.bubble,
            "idle": statistics.median(idle),
            "note": decision.note,
        }


def _document(model: str) -> TrainingDocument:
    return TrainingDocument(
        kind="Training",
        model=MODELS[model],
        data="nets.py:digits",
        epochs=EPOCHS,
        batch=BATCH,
        microbatches=MICROBATCHES,
        optimizer=OptimizerSpec(name="adamw", lr=1e-3),
        parallel="auto",
    )


def _decision(prepared: PreparedRank, candidates: Sequence[Candidate]) -> Decision:
    """What `parallel: auto` chooses; on one process the only candidate, which is not searched. A collective call."""
    if prepared.choice is None:
        return decide_on_ranks(prepared)
    (only,) = candidates
    return Decision(only.applied(prepared.document), prepared.choice, "")


def _asked(prepared: PreparedRank, candidate: Candidate) -> tuple[TrainingDocument, ScheduleChoice] | None:
    """What all ranks try for a candidate; None if the model cannot be cut or split so. A collective call."""
    document = candidate.applied(prepared.document)
    if prepared.choice is not None:
        return document, prepared.choice
    asked: list[tuple[TrainingDocument, ScheduleChoice] | None] = [None]
    if prepared.predictor is not None:
        with suppress(SolverError, TrainingError):
            asked = [(document, prepared.predictor.choice(candidate, MeasuredCosts()))]
    dist.broadcast_object_list(asked, src=0)
    return asked[0]


def _trial_seconds(prepared: PreparedRank, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
    """Seconds of an iteration of every candidate that can be tried. A collective call."""
    seconds: dict[Candidate, float] = {}
    for candidate in candidates:
        if (each := _asked(prepared, candidate)) is not None:
            trial = trial_of(prepared, *each)
            seconds[candidate] = measure(trial, each[1].costs).iteration_s
            trial.close()
    return seconds


def _race(prepared: PreparedRank, chosen: Candidate, seconds: dict[Candidate, float]) -> dict[Candidate, Raced]:
    """The chosen one, the fastest and the fastest of each number of processes, in turn. A collective call."""
    by_time = sorted(seconds, key=seconds.__getitem__)
    leaders = {one.processes: one for one in reversed(by_time)}.values()
    best = dict.fromkeys([*by_time[:FINALISTS], *leaders])
    agreed: list[Any] = [[chosen, *(one for one in best if one != chosen)]]
    dist.broadcast_object_list(agreed, src=0)
    trials = [trial_of(prepared, *each) for one in agreed[0] if (each := _asked(prepared, one)) is not None]
    raced = dict(zip(agreed[0], race(trials, ROUNDS), strict=True))
    for trial in trials:
        trial.close()
    return raced


def _chosen(document: TrainingDocument, candidates: Sequence[Candidate]) -> Candidate:
    sizes = (document.devices, document.replicas, document.tensor.ways, document.microbatches)
    return next(one for one in candidates if one.sizes == sizes and one.schedule == document.schedule)


def _trained_idle(run: RankRun) -> list[float]:
    """Measured idle time of the epochs of the run itself."""
    document = run.document
    lr = make_lr_schedule(document.lr_schedule, run.optimizer, run.sampler.updates, document.epochs)
    idle = [run_epoch(run, document, EpochStart(epoch), lr, lambda losses: None).idle for epoch in range(EPOCHS)]
    run.transport.close()
    return idle


def main() -> None:
    """Measure one case, and write it as JSON."""
    os.environ["OMP_NUM_THREADS"] = "1"
    model, processes, path = sys.argv[1:]
    (ranks,) = run_ranks(int(processes), [Exhaustive(model)], seconds=1500)
    Path(path).write_text(json.dumps(ranks[0]), encoding="utf-8")


if __name__ == "__main__":
    main()
