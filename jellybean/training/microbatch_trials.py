"""Tries the model on the micro-batches that an epoch has, before the first one: sizes, and what crosses from one to the
next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.user_errors import place_and_reason
from jellybean.training.choice.schedule_choice import ScheduleChoice
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.errors import TrainingError
from jellybean.training.inputs import TrainingInputs
from jellybean.training.models.buffers import buffers_restored, carried_buffer
from jellybean_solver.pipeline import STEADY_ROUNDS


@dataclass
class MicrobatchTrials:
    """What a model shows on micro-batches. `rows`: samples on which it can be run; None: a whole micro-batch."""

    inputs: TrainingInputs
    document: TrainingDocument
    rows: int | None = None
    _reasons: dict[int, str] = field(default_factory=dict)  # by size
    _carried: str | None = None

    def check(self, document: TrainingDocument, choice: ScheduleChoice) -> None:
        """TrainingError if the model cannot be trained so: with these sizes of micro-batches, or with copies."""
        rows = self.inputs.data.train.rows
        sampler = MicrobatchSampler(rows, document.batch, document.microbatches, document.workers, choice.period)
        if sampler.updates:
            self._check_sizes(document, sampler)
            # An epoch of a schedule without a flush may have very many micro-batches, and a few rounds have its places.
            few = (choice.period or sampler.run) * STEADY_ROUNDS * document.devices
            places = choice.schedule(document.devices, min(sampler.run, few)).device_of
            several = document.workers > 1 or any(len(set(devices)) > 1 for devices in zip(*places, strict=True))
            self._check_copies(document, several=several)

    def _check_sizes(self, document: TrainingDocument, sampler: MicrobatchSampler) -> None:
        first, last = (set(sampler.sizes(number)) for number in (0, sampler.iterations - 1))
        for size in sorted(last - first | (first & {1})):
            if reason := self._reason(size):
                raise TrainingError(
                    f"{document.model_name} cannot be trained on a micro-batch of {_rows(size)}, which "
                    f"occurs: {sampler.samples} rows in batches of {sampler.batch} end with micro-batches of "
                    f"{', '.join(map(str, sampler.sizes(sampler.iterations - 1)))}; take fewer microbatches, or "
                    f"another batch\n  {reason}"
                )

    def _check_copies(self, document: TrainingDocument, *, several: bool) -> None:
        if several and self.carried:
            raise TrainingError(
                f"{document.model_name} changes the buffer {self.carried} in each forward and computes with it, so "
                "copies that run different micro-batches would be other models: take `replicas: 1`, and a schedule "
                "with one copy of each stage"
            )

    @property
    def carried(self) -> str:
        """The buffer that carries something from one micro-batch to the next; empty if there is none."""
        if self._carried is None:
            example = self.inputs.example(self.document, self.rows).inputs
            module = self.inputs.module
            self._carried = carried_buffer(module, lambda: example.form.call(module, example.tensors))
        return self._carried

    def _reason(self, size: int) -> str:
        """Why the model takes no micro-batch of this size; empty if it does."""
        if size not in self._reasons:
            self._reasons[size] = self._tried(size)
        return self._reasons[size]

    def _tried(self, size: int) -> str:
        example, module = self.inputs.data.train.example(size), self.inputs.module
        with buffers_restored(module, self.document.model_name), torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                outputs = example.inputs.form.call(module, example.inputs.tensors)
                self.inputs.loss(outputs, example.target(slice(None)))
            except Exception as error:  # noqa: BLE001  # user code may raise anything
                return f"it failed{place_and_reason(error)}"
        return ""


def _rows(size: int) -> str:
    return f"{size} row" + ("s" if size != 1 else "")
