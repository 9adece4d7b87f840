"""The profile of a training run's model, with the names of layers that its plan needs."""

from __future__ import annotations

from pathlib import Path

import torch

from jellybean.documents.training import load_training
from jellybean.pipeline.model_profile import ModelProfile, of_torch_profile, runs_in
from jellybean.pipeline.torch_profile import ProfileTarget, profile_traced
from jellybean.training.graphs import find_graphs
from jellybean.training.inputs import check_inputs, read_inputs
from jellybean.training.stages.precision import PRECISIONS


def profile_training(directory: Path, *, seconds: float) -> ModelProfile:
    """Profile the model of DIR/training.yaml on one micro-batch on the CPU. `seconds`: about how long to measure."""
    document = load_training(directory, references=True)
    torch.set_num_threads(1)  # as ONNX models are measured
    inputs = read_inputs(document, directory)
    checked = check_inputs(inputs, document, directory)
    graphs = find_graphs(inputs.module, inputs.example(document, checked.trial_rows).inputs)
    target = ProfileTarget(precision=PRECISIONS[document.precision].computation)
    tensors = inputs.example(document).inputs.tensors
    facts = graphs.recipes[0].facts
    return of_torch_profile(profile_traced(graphs.training, facts, tensors, runs=runs_in(seconds), target=target))
