"""What `jellybean train` trains, in this process: what tests compare a pipeline with."""

from __future__ import annotations

from pathlib import Path

from jellybean.documents.training import TrainingDocument
from jellybean.training.inputs import TrainingInputs, check_inputs, read_inputs


def load_training_inputs(document: TrainingDocument, directory: Path) -> TrainingInputs:
    """Load model with all weights, data and loss, and check them. TrainingError if they do not fit together."""
    inputs = read_inputs(document, directory)
    return inputs.ruled(check_inputs(inputs, document).rules)
