"""Low-rank adapters of a small Llama, trained by a pipeline and by one process."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from jellybean.documents import LoraSpec, OptimizerSpec, TrainingDocument
from jellybean.training import GroupCommunicator, trained_model
from jellybean.training.data.rows import MemoryRows
from jellybean.training.models.lora import trained_module
from tests.integration.training.models import zoo
from tests.integration.training.models.zoo import ROWS
from tests.support.training_inputs import first_update, load_training_inputs, set_up_cpu_run

LR, UPDATES, MICROBATCHES = 0.01, 3, 4
DEFAULT = LoraSpec(rank=4)
LAST = LoraSpec(rank=4, targets=("lm_head",))


def llama() -> torch.nn.Module:
    return zoo.SMALL_LLAMA.model().to(zoo.DTYPE)


llama_data = zoo.SMALL_LLAMA.data


def adapted_bert() -> Any:
    """The user's own PeftModel, which also trains the classifier."""
    model = zoo.bert()
    import peft

    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft asks transformers in a deprecated way
        return peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=4, modules_to_save=["classifier"]))


adapted_bert_data = zoo.bert_data


@dataclass(frozen=True)
class LoraUpdates:
    """Updates by a schedule on `devices` ranks; returns the rank's adapters, bytes sent by peer, and the whole model.

    `lora`: None if the model has adapters already. `model`: a function; its rows come from `MODEL_data`.
    """

    schedule: str
    devices: int
    lora: LoraSpec | None = DEFAULT
    model: str = f"{__name__}:llama"

    @property
    def document(self) -> TrainingDocument:
        return TrainingDocument(
            kind="Training",
            model=self.model,
            lora=self.lora,
            data=f"{self.model}_data",
            loss="model",
            epochs=1,
            batch=ROWS,
            microbatches=MICROBATCHES,
            optimizer=OptimizerSpec(name="adamw", lr=LR),
            devices=self.devices,
            schedule=self.schedule,
            bandwidth_bytes_per_s=1e9,  # else it is measured, with messages that would be counted
        )

    def __call__(self, rank: int) -> dict[str, Any]:
        sent: Counter[int] = Counter()
        original = GroupCommunicator.send

        def send(own: GroupCommunicator, message: torch.Tensor, peer: int, *rest: Any) -> Any:
            sent[peer] += message.nbytes
            return original(own, message, peer, *rest)

        GroupCommunicator.send = send  # type: ignore[method-assign]
        try:
            run = set_up_cpu_run(self.document, rank)
            for _ in range(UPDATES):
                run.interpreter.run(first_update(run))
            counted = dict(sent)
            run.transport.close()
        finally:
            GroupCommunicator.send = original  # type: ignore[method-assign]
        names = [
            name
            for stage in run.held.values()
            for name, value in stage.versions.parameters.items()
            if value.requires_grad
        ]
        module = trained_model(run, self.document, Path())
        weights = {} if module is None else dict(trained_module(module).state_dict())
        return {"sent": counted, "trained": names, "weights": {n: v.detach().clone() for n, v in weights.items()}}


def one_process(case: LoraUpdates) -> dict[str, torch.Tensor]:
    """All weights after the same updates without a pipeline, a micro-batch at a time."""
    material = load_training_inputs(case.document, Path())
    assert isinstance(material.data.train, MemoryRows)
    module, samples = material.module, material.data.train.samples
    trained = [value for value in module.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=0.0)
    parts = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)).tensor_split(MICROBATCHES)
    total = sum(samples.weight(rows) for rows in parts)
    for _ in range(UPDATES):
        for rows in parts:
            arguments = samples.arguments(rows)
            outputs = arguments.form.call(module, arguments.tensors)
            (material.loss(outputs, samples.target(rows)) * samples.weight(rows) / total).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
