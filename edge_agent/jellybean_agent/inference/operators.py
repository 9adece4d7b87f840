"""An agent's operators as models of the Open Inference Protocol; the variant is the version.

Inputs and outputs have the names of the model file. A request is a direct call: it is queued with the pipeline's
requests, shares no run with them, and has counters of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import grpc

from jellybean_agent.brain.plan_view import OperatorView, PlanView, WorkerView
from jellybean_agent.errors import InvalidInputError, StatusError
from jellybean_agent.execution.executor import Executor
from jellybean_agent.inference.models import ModelCounters, Sequence, ServedModel
from jellybean_agent.security.identity import current_caller
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import Array, check_tensor_names, decode_tensor, encode_tensor, tensor_mismatch
from jellybean_agent.worker.driver import Driver
from jellybean_protos.agent.v1 import agent_pb2

MODEL_PLATFORM, PYTHON_PLATFORM = "onnxruntime_onnx", "python"


class Agent(Protocol):
    """The part of an agent that `Operators` uses. `driver` is None while the agent loads its models."""

    view: PlanView
    worker: WorkerView
    state: str
    driver: Driver | None
    executors: Mapping[str, Executor]


def _platform(operator: OperatorView) -> str:
    return PYTHON_PLATFORM if operator.python is not None else MODEL_PLATFORM


class Operators:
    """The operators of one agent, as models."""

    name = "jellybean-agent"

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @property
    def is_ready(self) -> bool:
        return self._agent.state == "ready"

    @property
    def ready_driver(self) -> Driver | None:
        """The driver; None while the agent accepts no requests (loading or draining)."""
        return self._agent.driver if self.is_ready else None

    def input_names(self, model: str) -> list[str]:
        """Names of the model's inputs, in the order of the operator's edges."""
        return [port.name for port, _ in self._inputs(model, self._agent.executors[model])]

    def models(self) -> Mapping[str, ServedModel]:
        return {name: self._model(name) for name in self._agent.worker.operators}

    def _model(self, name: str) -> ServedModel:
        operator = self._agent.view.operators[name]
        variant, platform = operator.variant, _platform(operator)
        reason = "" if self.is_ready else f"worker {self._agent.worker.name} is {self._agent.state}"
        executor = self._agent.executors.get(name)
        if executor is None:
            return ServedModel(name, variant, platform, reason)
        inputs = tuple(
            port if several or port.shape[:1] != (-1,) else TensorPort(port.name, port.dtype, (1, *port.shape[1:]))
            for port, several in self._inputs(name, executor)
        )
        return ServedModel(name, variant, platform, reason, inputs, executor.outputs)

    def _inputs(self, name: str, executor: Executor) -> list[tuple[TensorPort, bool]]:
        """Per input: (port, True if its edge is a gather, which concatenates the tensors of several children)."""
        kinds = [kind for _, kind in self._agent.view.operators[name].wiring.inputs]
        given = zip(executor.inputs, [*kinds, *["each"] * (len(executor.inputs) - len(kinds))], strict=True)
        return [(port, kind == "gather") for port, kind in given]  # a direct call gives the state as inputs

    def check_caller(self, model: str) -> None:
        """All callers may use all models."""

    def figures(self, model: str) -> ModelCounters:
        driver = self._agent.driver
        if driver is None:
            return ModelCounters(0, 0, 0, 0.0)
        counters = driver.counters
        return ModelCounters(
            counters.completed[model] + counters.direct_calls[model],
            counters.failed[model] + counters.direct_calls_failed[model],
            counters.runs[model].total() + counters.direct_calls[model],
            driver.busy_s()[model],
        )

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, agent_pb2.Tensor],
        timeout_s: float | None,
        sequence: Sequence | None = None,
        request_id: str = "",
    ) -> Mapping[str, agent_pb2.Tensor]:
        if sequence is not None:
            reason = "parameter sequence_id: an operator keeps no state between direct calls; ask the gateway"
            raise StatusError(grpc.StatusCode.UNIMPLEMENTED, reason)
        driver = self._agent.driver
        if driver is None or not self.is_ready:
            reason = f"worker {self._agent.worker.name} is {self._agent.state}: it takes no requests"
            raise StatusError(grpc.StatusCode.UNAVAILABLE, reason)
        outputs = await driver.call_operator(model, self.arrays(model, inputs), timeout_s, current_caller())
        return {name: encode_tensor(array) for name, array in outputs.items()}

    def arrays(self, model: str, inputs: Mapping[str, agent_pb2.Tensor]) -> list[Array]:
        """The tensors as arrays in the order of the operator's edges, checked against the model."""
        ports = self._inputs(model, self._agent.executors[model])
        check_tensor_names("input", [port.name for port, _ in ports], inputs)
        found = []
        for port, several in ports:
            try:
                array = decode_tensor(inputs[port.name])
            except InvalidInputError as error:
                raise InvalidInputError(f"input {port.name}: {error}") from error
            why = tensor_mismatch(array.dtype.name, array.shape, port.dtype, port.shape)
            if why is None and not several and array.shape[:1] != (1,):
                why = f"one request has a leading dimension of 1, got shape {list(array.shape)}"
            if why is not None:
                raise InvalidInputError(f"input {port.name}: {why}")
            found.append(array)
        return found
