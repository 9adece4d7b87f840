"""How long the first process takes to check, trace, profile and cut models of transformers and timm."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.harness.registry import benchmark
from benchmarks.harness.result import Result, Table, Topic

DEVICES = 4


@benchmark
def preparing(smoke: bool) -> Result:
    """Seconds from a loaded model to its stages on four devices."""
    import torch

    from tests.integration.training.models.zoo import ZOO

    torch.set_num_threads(1)
    names = list(ZOO)[:1] if smoke else list(ZOO)
    return Result(
        title="Preparing a model for training",
        topic=Topic.TRAINING,
        method=f"The small models of the tests, with random weights, for {DEVICES} devices and `schedule: auto`, on "
        "one thread. Tracing is done in training and in evaluation mode, and the graphs are compared with the model.",
        reference="no other system's figure; a run prepares once.",
        tables=(Table.of(("model", "tracer", "check (s)", "trace (s)", "profile and cut (s)"), map(_row, names)),),
    )


def _row(name: str) -> tuple[str, ...]:
    import torch

    from jellybean.training.choice.schedule_choice import choose_schedule
    from jellybean.training.graphs import find_graphs
    from jellybean.training.inputs import check_inputs, read_inputs
    from jellybean.training.processes.link_speed import LinkSpeed
    from jellybean.training.stages.cut import cut_module
    from tests.integration.training.models.zoo_case import ZooUpdate

    document = ZooUpdate(name, "auto", DEVICES).document
    inputs = read_inputs(document, Path())
    began = time.perf_counter()
    checked = check_inputs(inputs, document)
    checked_s = time.perf_counter()
    graphs = find_graphs(inputs.module, inputs.example(document, checked.trial_rows).inputs)
    traced_s = time.perf_counter()
    facts, tensors = graphs.recipes[0].facts, inputs.example(document).inputs.tensors
    states = inputs.optimizer.states_per_weight(inputs.module)
    device, link = torch.device("cpu"), LinkSpeed(1.25e9)
    choice = choose_schedule(graphs.training, facts, tensors, document, states, device, link)
    cut_module(graphs.training, facts, choice.stage_of)
    seconds = (checked_s - began, traced_s - checked_s, time.perf_counter() - traced_s)
    return (name, graphs.training.tracer, *(f"{value:.1f}" for value in seconds))
