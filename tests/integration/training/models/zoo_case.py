"""A test case that ranks run: one update of a library's model, set up as `jellybean train` does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call

from jellybean.documents import LoraSpec, TrainingDocument
from jellybean.training import trained_model
from jellybean.training.data.rows import MemoryRows
from jellybean.training.evaluation import evaluate
from jellybean.training.models.lora import trained_module
from tests.integration.training.models.whole_model import measured
from tests.integration.training.models.zoo import ROWS, ZOO
from tests.support.training_inputs import first_update, load_training_inputs, set_up_cpu_run, training_document

LR = 0.1
Weights = dict[str, torch.Tensor]
Version = Callable[[int, int], int]  # stage, update -> number of updates that its weights have had


@dataclass(frozen=True)
class ZooUpdate:
    """One update of `model` by a schedule on `devices` ranks; returns losses, weights and the evaluation."""

    model: str
    schedule: str
    devices: int
    microbatches: int = 4
    lora: LoraSpec | None = None

    @property
    def document(self) -> TrainingDocument:
        return training_document(
            LR,
            model=f"tests.integration.training.models.zoo:{self.model}",
            data=f"tests.integration.training.models.zoo:{self.model}_data",
            lora=self.lora,
            loss=ZOO[self.model].loss,
            batch=ROWS,
            microbatches=self.microbatches,
            devices=self.devices,
            schedule=self.schedule,
            staleness=True,
        )

    def __call__(self, rank: int) -> dict[str, Any]:
        run = set_up_cpu_run(self.document, rank)
        feed = first_update(run)
        log = run.interpreter.run(feed)
        losses = {m: float(loss) * feed.factor(m) for m, loss in log.losses.items()}
        evaluation = evaluate(run)
        run.transport.close()
        module = trained_model(run, self.document, Path())
        weights = {} if module is None else trained_module(module).state_dict()
        return {
            "losses": losses,
            "weights": {name: value.detach().clone() for name, value in weights.items()},
            "evaluation": (evaluation.metrics["accuracy"], evaluation.loss),
            "period": run.schedule.period,
            "stage_of": {name: number for (number, _), stage in run.held.items() for name in stage.versions.parameters},
        }


def in_sequence(case: ZooUpdate, period: int, version: Version, stage_of: Mapping[str, int]) -> Weights:
    """The weights after an epoch without a flush, update by update, from the definition.

    Stage s computes update u with the weights that `version(s, u)` updates have made, and changes the newest ones.
    """
    inputs = load_training_inputs(case.document, Path())
    assert isinstance(inputs.data.train, MemoryRows)
    module, samples = inputs.module, inputs.data.train.samples
    parts = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)).tensor_split(case.microbatches)
    history = [{name: value.detach().clone() for name, value in module.named_parameters()}]
    trained = [name for name, value in module.named_parameters() if value.requires_grad]
    for update in range(len(parts) // period):
        own = parts[update * period : (update + 1) * period]
        seen = {name: history[version(stage_of.get(name, 0), update)][name] for name in history[0]}
        seen |= {name: seen[name].requires_grad_() for name in trained}
        whole, total = sum(samples.weight(rows) for rows in own), torch.zeros((), dtype=torch.float64)
        for rows in own:
            arguments = samples.arguments(rows)
            outputs = arguments.form.call(partial(_with_weights, module, seen), arguments.tensors)
            total = total + inputs.loss(outputs, samples.target(rows)) * samples.weight(rows) / whole
        gradients = torch.autograd.grad(total, [seen[name] for name in trained], allow_unused=True)
        steps = {n: LR * g for n, g in zip(trained, gradients, strict=True) if g is not None}
        history.append({n: (v - steps.get(n, 0.0)).detach().clone() for n, v in history[-1].items()})
    return history[-1]


def _with_weights(module: torch.nn.Module, weights: Weights, *args: Any, **kwargs: Any) -> Any:
    return functional_call(module, weights, args, kwargs)


def one_process(case: ZooUpdate) -> tuple[float, dict[str, torch.Tensor], tuple[float | None, float]]:
    """Loss, weights with buffers, and evaluation of the same update without a pipeline, a micro-batch at a time."""
    material = load_training_inputs(case.document, Path())
    assert isinstance(material.data.train, MemoryRows)
    module, samples = material.module, material.data.train.samples
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    parts = order.tensor_split(case.microbatches)
    total, loss_sum = sum(samples.weight(rows) for rows in parts), 0.0
    for rows in parts:
        arguments = samples.arguments(rows)
        outputs = arguments.form.call(module, arguments.tensors)
        loss = material.loss(outputs, samples.target(rows)) * samples.weight(rows) / total
        loss.backward()
        loss_sum += float(loss.detach())
    with torch.no_grad():
        for value in module.parameters():
            if value.grad is not None:
                value.sub_(LR * value.grad)
    return loss_sum, {n: v.detach().clone() for n, v in module.state_dict().items()}, measured(module, material)
