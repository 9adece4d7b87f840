"""Runs micro-batches forward through the pipeline in evaluation mode, each stage on its own rank.

No rank needs the whole model. Ranks run ahead of each other by at most a window of micro-batches, so that memory does
not grow with the number of test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from jellybean.training.processes.tensor_messages import EVALUATION, MessageKey, StageTensors
from jellybean.training.processes.transport import StageTransport
from jellybean.training.stages.parameter_slots import ParameterSlots

WINDOW = 8  # micro-batches between two barriers
ModelInputs = Callable[[int, tuple[int, ...]], StageTensors]  # micro-batch, indices of the model's tensors
StageWeights = Mapping[int, dict[str, torch.Tensor]]  # weights and buffers, by stage and name
Collect = Callable[[int, StageTensors], None]  # micro-batch, what the last stage returned


class EvaluationStage:
    """A stage in evaluation mode. `arguments`: indices of the model's tensors that it reads after the values received.

    `names`: its parameters and buffers -> names of the tensors to use. `precision`: as in StageSettings.
    """

    def __init__(
        self,
        module: nn.Module,
        arguments: tuple[int, ...],
        names: Mapping[str, str],
        precision: torch.dtype | None = None,
    ) -> None:
        self.arguments, self._module, self._names, self._precision = arguments, module, names, precision
        self._slots = ParameterSlots(module)

    def autocast(self, values: StageTensors) -> AbstractContextManager[Any]:
        """Context with the precision of the stage's computation, for these values."""
        device = next((value.device for value in values if value is not None), torch.device("cpu"))
        return torch.autocast(device.type, self._precision) if self._precision else nullcontext()

    def run(self, values: StageTensors, tensors: dict[str, torch.Tensor]) -> StageTensors:
        """What the stage returns for these inputs, with weights and buffers `tensors`, in which it replaces buffers."""
        used = {own: tensors[name] for own, name in self._names.items() if name in tensors}
        with (
            torch.no_grad(),
            self.autocast(values),
            self._slots.replaced(used),
            _evaluating(self._module),
        ):
            found = self._module(*values)
            tensors.update((self._names[own], value) for own, value in self._slots.assigned(used).items())
        return found if isinstance(found, tuple) else (found,)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Context in which a module is in evaluation mode; submodules may be shared with a module in training.

    Modules change their modes by their own methods, which may forget what holds in one mode only.
    """
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        module.train()
        for part, training in before:
            part.training = training


class EvaluationPass:
    """The stages of one rank.

    `places`: device by stage. `first_rank`: of this replica; `rank_step`: from the rank of a device to that of the next
    one. `step` is called after each stage.
    """

    def __init__(
        self,
        stages: Mapping[int, EvaluationStage],
        places: Sequence[int],
        transport: StageTransport,
        *,
        device: int,
        first_rank: int = 0,
        rank_step: int = 1,
        step: Callable[[], None] = lambda: None,
    ) -> None:
        self._stages, self._places, self._transport = stages, places, transport
        self._device, self._first_rank, self._rank_step, self._done = device, first_rank, rank_step, step
        self._passes = 0
        self._local: dict[MessageKey, StageTensors] = {}

    @property
    def reads(self) -> int:
        """How often a micro-batch's data is read on this rank: for inputs of its stages, and for what is collected."""
        return sum(bool(stage.arguments) for stage in self._stages.values()) + (len(self._places) - 1 in self._stages)

    def run(
        self, microbatches: int, windows: int, inputs: ModelInputs, tensors: StageWeights, collect: Collect
    ) -> None:
        """Run all micro-batches of this replica. A collective call.

        `windows`: of WINDOW micro-batches, of the replica that has most. `collect` is called on the rank of the last
        stage.
        """
        self._passes += 1
        for window in range(windows):
            first = window * WINDOW
            for stage in sorted(self._stages):
                for microbatch in range(first, min(first + WINDOW, microbatches)):
                    self._step(MessageKey(self._passes, EVALUATION, stage, microbatch, 0), inputs, tensors, collect)
            dist.barrier()

    def _step(self, key: MessageKey, inputs: ModelInputs, tensors: StageWeights, collect: Collect) -> None:
        stage = self._stages[key.stage]
        received = self._take(key) if key.stage else ()
        outputs = stage.run((*received, *inputs(key.microbatch, stage.arguments)), tensors[key.stage])
        self._done()
        following = key.stage + 1
        if following == len(self._places):
            with stage.autocast(outputs):  # as in training, where losses are computed in float32
                collect(key.microbatch, outputs)
            return
        receiver, key = self._places[following], key._replace(stage=following)
        if receiver == self._device:
            self._local[key] = outputs
        else:
            self._transport.send(self._first_rank + receiver * self._rank_step, key, outputs)

    def _take(self, key: MessageKey) -> StageTensors:
        return self._local.pop(key) if key in self._local else self._transport.take(key)
