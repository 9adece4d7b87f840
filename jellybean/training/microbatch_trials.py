"""Tries the model on the micro-batches that an epoch has, before the first one: sizes, and what crosses from one to the
next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import nn
from torch.utils import _pytree as pytree

from jellybean.documents.training import TrainingDocument
from jellybean.pipeline.torch_gradients import gradient_digests
from jellybean.pipeline.torch_saved import activations_in_file
from jellybean.pipeline.torch_state import same_values, seed_generators, state_kept
from jellybean.pipeline.torch_trace import flat_tensors
from jellybean.pipeline.user_errors import place_and_reason
from jellybean.training.checkpoints.tied_names import tied_names
from jellybean.training.choice.schedule_choice import ScheduleChoice
from jellybean.training.data.sampler import MicrobatchSampler
from jellybean.training.errors import TrainingError
from jellybean.training.inputs import CheckedInputs, TrainingInputs
from jellybean.training.losses import MODEL
from jellybean.training.models.buffers import buffer_shapes_kept, carried_buffer
from jellybean.training.models.kept_values import kept_between_calls
from jellybean.training.models.written_weights import WrittenWeight, written_weights
from jellybean_solver.pipeline import STEADY_ROUNDS, ActionKind, Schedule

_OTHER = -2.0  # factor of other weights: an exact one, by which neither odd nor even functions stay the same


@dataclass
class MicrobatchTrials:
    """What a model shows on micro-batches.

    `checked`: what its trial showed. `servers_workers`: of a run with parameter servers.
    """

    inputs: TrainingInputs
    document: TrainingDocument
    checked: CheckedInputs
    servers_workers: int = 1
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
            schedule = choice.schedule(document.devices, min(sampler.run, few))
            places = zip(*schedule.device_of, strict=True)
            several = document.workers * self.servers_workers > 1 or any(len(set(devices)) > 1 for devices in places)
            self._check_copies(document, several=several)
            self._check_kept(document, several=several)
            self._check_loss(document, schedule)
            self._check_written(document, schedule, several=several)
            if _overlaps(schedule):
                self._check_backward(document)
                if not document.recompute:
                    self._check_overlap(document)

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

    def _check_kept(self, document: TrainingDocument, *, several: bool) -> None:
        if not self.kept or not (several or document.recompute):
            return
        why = (
            "so copies that run different micro-batches would be other models: take `replicas: 1`, and a schedule with "
            "one copy of each stage"
        )
        raise TrainingError(
            f"forward of {document.model_name} keeps {self.kept}, which decides what the next one computes, "
            f"{why if several else 'and `recompute` runs forward twice: leave it out'}; or keep it in a buffer"
        )

    @cached_property
    def kept(self) -> str:
        """What forward keeps beside buffers, weights and plain values, and a later forward reads; empty if nothing."""
        example, module = self.inputs.example(self.document, self.checked.trial_rows).inputs, self.inputs.module
        return kept_between_calls(module, lambda: example.call(module))

    @property
    def note(self) -> str:
        """What the user must know of the model, or empty."""
        if not self.kept:
            return ""
        return (
            f"forward keeps {self.kept}, which decides what the next one computes and is in no checkpoint: a run that "
            "resumes begins with what it is at the start; a buffer would be saved"
        )

    def _check_written(self, document: TrainingDocument, schedule: Schedule, *, several: bool) -> None:
        tied = tied_names(self.inputs.module)
        for weight in self.written:
            why = ""
            if weight.frozen:
                why = (
                    "which takes no gradient, so that no checkpoint has it, and the trained model would have it as the "
                    "function gives it: make it a buffer (register_buffer)"
                )
            elif several:
                why = (
                    "so copies that run different micro-batches would be other models: take `replicas: 1`, and a "
                    "schedule with one copy of each stage"
                )
            elif not schedule.flushes:
                why = "which an update without a flush replaces at the same time: take a schedule with a flush"
            elif schedule.stages > 1 and weight.name in tied:
                why = "which several layers share, and their stages have a copy each: take devices: 1"
            elif _overlaps(schedule) and (weight.moves or self._needs_written()):
                why = (
                    "and a gradient needs the value from before, which the next micro-batch overwrites when several "
                    "are in flight: take devices: 1"
                )
            if why:
                raise TrainingError(f"forward of {document.model_name} writes into the weight {weight.name}, {why}")

    def _check_loss(self, document: TrainingDocument, schedule: Schedule) -> None:
        if schedule.stages > 1 and self.loss_reads_weights:
            raise TrainingError(
                f"loss: {document.loss} reads weights of the model beside its outputs, and the stage that computes it "
                "has only some of them: take devices: 1, or let the model compute it, and write `loss: model`"
            )

    @cached_property
    def loss_reads_weights(self) -> bool:
        """Whether the loss of the same outputs is another one when the weights are others."""
        if self.document.loss.function in ("cross_entropy", "mse", MODEL):
            return False
        example = self.checked.rules.apply(self.inputs.example(self.document, self.checked.trial_rows))
        module = self.inputs.module
        weights = [value for value in module.parameters() if value.is_floating_point() or value.is_complex()]
        if not weights or not example.weight(slice(None)):
            return False
        with state_kept(module), torch.no_grad():
            outputs = example.inputs.call(module)
            losses = []
            for _ in range(2):
                seed_generators(0)
                given = pytree.tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, outputs)
                losses.append(self.inputs.loss(given, example.target(slice(None))))
                torch._foreach_mul_(weights, _OTHER)
            torch._foreach_mul_(weights, 1 / _OTHER**2)
        return not torch.allclose(*losses, equal_nan=True)

    @cached_property
    def written(self) -> list[WrittenWeight]:
        """The weights that forward writes into."""
        example, module = self.inputs.example(self.document, self.checked.trial_rows).inputs, self.inputs.module
        return written_weights(module, lambda: example.call(module))

    def _check_overlap(self, document: TrainingDocument) -> None:
        if self.carried and self._needs_written():
            raise TrainingError(
                f"{document.model_name} writes into the buffer {self.carried} in place, and its gradient needs the "
                "value from before, which the next micro-batch overwrites when several are in flight: compute with "
                "a copy of it (.clone()), or take devices: 1"
            )

    def _check_backward(self, document: TrainingDocument) -> None:
        if name := self._written_backward():
            raise TrainingError(
                f"{document.model_name} writes into the buffer {name} in the backward pass, where its own activation "
                "checkpointing (torch.utils.checkpoint) runs forward again. With several micro-batches in flight the "
                "order of these writes is another one than on one device, and so are the buffer's values: take "
                "`recompute: true` in place of the model's checkpointing, or devices: 1"
            )

    def _written_backward(self) -> str:
        """The first buffer that a forward pass changes, and its backward pass again; empty if there is none."""
        module, example = self.inputs.module, self.inputs.example(self.document, self.checked.trial_rows)
        weights = [value for value in module.parameters() if value.requires_grad]
        values = [_buffers(module)]
        if not values[0]:
            return ""
        with buffer_shapes_kept(module, self.document.model_name), activations_in_file((*weights, *module.buffers())):
            roots = [value for value in flat_tensors(example.inputs.call(module)) if value.requires_grad]
            values.append(_buffers(module))
            gradient_digests(roots, [torch.ones_like(value) for value in roots], weights)
            values.append(_buffers(module))
        return next((name for name in values[0] if all(not same_values(*both) for both in _pairs(values, name))), "")

    def _needs_written(self) -> bool:
        """Whether a backward pass fails after the forward pass of another micro-batch, as its tensors are others."""
        module, example = self.inputs.module, self.inputs.example(self.document, self.checked.trial_rows)
        weights = [value for value in module.parameters() if value.requires_grad]
        with buffer_shapes_kept(module, self.document.model_name):
            outputs = [example.inputs.call(module) for _ in range(2)]
            loss = self.inputs.loss(outputs[0], example.target(slice(None)))
            try:
                gradient_digests([loss], [torch.ones_like(loss)], weights)
            except RuntimeError:  # what autograd raises has no class of its own; it did not fail with one micro-batch
                return True
        return False

    @property
    def carried(self) -> str:
        """The buffer that carries something from one micro-batch to the next; empty if there is none."""
        if self._carried is None:
            example = self.inputs.example(self.document, self.checked.trial_rows).inputs
            module = self.inputs.module
            self._carried = carried_buffer(module, lambda: example.call(module))
        return self._carried

    def _reason(self, size: int) -> str:
        """Why the model takes no micro-batch of this size; empty if it does."""
        if size not in self._reasons:
            self._reasons[size] = self._tried(size)
        return self._reasons[size]

    def _tried(self, size: int) -> str:
        example, module = self.inputs.data.train.example(size), self.inputs.module
        with buffer_shapes_kept(module, self.document.model_name), torch.no_grad():
            try:
                outputs = example.inputs.call(module)
                if self.checked.rules.apply(example).weight(slice(None)):
                    self.inputs.loss(outputs, example.target(slice(None)))
            except Exception as error:  # noqa: BLE001  # user code may raise anything
                return f"it failed{place_and_reason(error)}"
        return ""


def _buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of a module's buffers."""
    return {name: value.clone() for name, value in module.named_buffers()}


def _pairs(values: Sequence[Mapping[str, torch.Tensor]], name: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The values of a buffer at two times that follow each other."""
    return pairwise(one[name] for one in values)


def _overlaps(schedule: Schedule) -> bool:
    """Whether a stage runs a forward pass between that of another micro-batch and the end of its backward pass."""
    live: Counter[tuple[int, int]] = Counter()
    for device, action in schedule:
        key = device, action.stage
        live[key] += action.kind is ActionKind.FORWARD
        if live[key] > 1:
            return True
        live[key] -= action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT)
    return False


def _rows(size: int) -> str:
    return f"{size} row" + ("s" if size != 1 else "")
