"""The fast path of ModelInfer for an agent's operators."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np

from jellybean_agent.errors import AgentError
from jellybean_agent.inference.envelopes import RequestEnvelope, shortest_timeout_s
from jellybean_agent.inference.fast import FastInfer
from jellybean_agent.inference.operators import Operators
from jellybean_agent.inference.service import refusal_of
from jellybean_agent.rpc.calls import RpcCall
from jellybean_agent.security.identity import caller_uri
from jellybean_agent.tensors.tensors import Array, dtype_name, tensor_bytes
from jellybean_agent.worker.driver import Driver
from jellybean_protos.agent.v1 import agent_pb2


class FastOperators(FastInfer):
    """Direct calls of operators. While the agent loads or drains, the handler refuses the requests."""

    def __init__(self, operators: Operators) -> None:
        super().__init__(operators)
        self._operators = operators

    def _checked(self, model: str, inputs: Mapping[str, agent_pb2.Tensor]) -> Sequence[str]:
        self._operators.arrays(model, inputs)
        return self._operators.input_names(model)

    def _begin(self, call: RpcCall, known: RequestEnvelope, own_id: bytes, tensors: Sequence[memoryview]) -> bool:
        driver = self._operators.ready_driver
        if driver is None:
            return False
        arrays = []
        for index in known.order:
            slot = known.slots[index]
            arrays.append(np.frombuffer(tensors[index], slot.dtype).reshape(slot.shape))
        _Request(call, driver, known, own_id).begin(arrays)
        return True


class _Request:
    """One request in flight."""

    __slots__ = ("_call", "_driver", "_id", "_key", "_known", "_left_s", "_timer")

    def __init__(self, call: RpcCall, driver: Driver, known: RequestEnvelope, own_id: bytes) -> None:
        self._call, self._driver, self._known, self._id = call, driver, known, own_id
        self._key = ""
        self._timer: asyncio.TimerHandle | None = None
        self._left_s = shortest_timeout_s(call.time_remaining(), known.timeout_s)

    def begin(self, arrays: Sequence[Array]) -> None:
        try:
            self._key = self._driver.begin_call(self._known.model, arrays, self._answered, caller_uri(self._call))
        except AgentError as error:
            self._call.end(*refusal_of(error))
            return
        if self._call.is_over:  # it has been answered already
            return
        if self._left_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._left_s, self._late)
        self._call.on_cancel = self._cancelled

    def _answered(self, what: Mapping[str, Array] | AgentError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._call.on_cancel = None
        try:
            if isinstance(what, AgentError):
                raise what
            arrays = [what[name] for name in self._known.names]
            outputs = [(dtype_name(array), array.shape, tensor_bytes(array)) for array in arrays]
            response = self._known.response(self._id, outputs)
        except AgentError as error:
            self._call.end(*refusal_of(error))
        else:
            self._call.reply(response)

    def _late(self) -> None:
        error = self._driver.deadline_error(self._known.model, self._left_s or 0.0)
        self._driver.cancel_call(self._key)
        self._call.on_cancel = None
        self._call.end(*refusal_of(error))

    def _cancelled(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._driver.cancel_call(self._key)
