"""A model trained from a file of weights, each rank reading its own stages'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from jellybean.documents import TrainingDocument
from jellybean.training.models.building import load_model
from tests.support.training_inputs import first_update, set_up_cpu_run, training_document

FILE = "pretrained.safetensors"


def document(weights: str | None, devices: int = 2, seed: int = 0) -> TrainingDocument:
    place = "tests.integration.training.models.evaluation_case"
    return training_document(
        0.1,
        model=f"{place}:two_modes",
        data=f"{place}:rows_of_three_classes",
        weights=weights,
        batch=16,
        microbatches=4,
        devices=devices,
        schedule="1f1b",
        seed=seed,
    )


def write_weights(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Weights of a model of another seed, as libraries write them: a tied weight has one of its names."""
    state = dict(load_model(document(None, seed=seed), folder).state_dict())
    state["norm.running_mean"] = torch.arange(6.0, dtype=torch.float64)
    state.pop("middle.weight")
    state["from.another.model"] = torch.zeros(1)
    save_file({name: value.clone() for name, value in state.items()}, folder / FILE)
    return state


@dataclass(frozen=True)
class TrainFromFile:
    """One update from the weights in `folder`; returns what the rank holds before it, and its losses."""

    folder: str

    def __call__(self, rank: int) -> tuple[dict[str, torch.Tensor], dict[int, float]]:
        run = set_up_cpu_run(document(FILE), rank, Path(self.folder))
        held = {
            name: value.detach().clone()
            for stage in run.held.values()
            for name, value in (*stage.versions.parameters.items(), *stage.buffers.items())
        }
        feed = first_update(run)
        log = run.interpreter.run(feed)
        run.transport.close()
        return held, {number: float(loss) for number, loss in log.losses.items()}
