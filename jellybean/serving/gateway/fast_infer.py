"""`FastInfer` of a gateway: requests for its workflow."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from jellybean.serving.gateway.gateway import Gateway
from jellybean.serving.gateway.in_flight import Request, Tensors
from jellybean.serving.gateway.inputs import check_inputs
from jellybean.serving.gateway.workflow_model import Workflow
from jellybean.serving.outcomes import Outcome
from jellybean_agent import (
    AgentError,
    FastInfer,
    RawTensor,
    RequestEnvelope,
    RpcCall,
    describe_error,
    shortest_timeout_s,
)

_KEPT_BYTES = 2**16  # of a tensor: one that is smaller may lie in something larger


class FastWorkflow(FastInfer):
    """Requests that may be kept on disk are left to the handler."""

    def __init__(self, gateway: Gateway, workflow: Workflow) -> None:
        super().__init__(workflow)
        self._gateway = gateway
        self._plan = ""  # that the envelopes are of

    def __call__(self, call: RpcCall, data: memoryview) -> bool:
        view = self._gateway.view
        if self._plan != view.hash:
            self._known.clear()
            self._plan = view.hash
        return not view.eventually and super().__call__(call, data)

    def _checked(self, model: str, inputs: Tensors) -> Sequence[str]:
        check_inputs(self._gateway.view, self._gateway.signature, inputs)
        return tuple(inputs)

    def _begin(self, call: RpcCall, known: RequestEnvelope, own_id: bytes, tensors: Sequence[memoryview]) -> bool:
        inputs = {
            slot.name: RawTensor(slot.dtype.name, slot.shape, tensor if len(tensor) >= _KEPT_BYTES else bytes(tensor))
            for slot, tensor in zip(known.slots, tensors, strict=True)
        }

        def tell(outcome: Outcome | None, outputs: Tensors) -> None:
            call.on_cancel = None
            if outcome is not None:
                call.end(outcome.status, outcome.reason)
            else:
                answer(outputs)

        def answer(outputs: Tensors) -> None:
            tensors = [outputs[name] for name in known.names]
            found = [(tensor.dtype, tuple(tensor.shape), tensor.data) for tensor in tensors]
            try:
                response = known.response(own_id, found)
            except (AgentError, ValueError, KeyError) as error:  # a type that the protocol does not have
                call.end(grpc.StatusCode.INTERNAL, f"the answer cannot be told: {describe_error(error)}")
                return
            call.reply(response)

        def give_up(request: Request) -> None:
            call.on_cancel = lambda: self._gateway.give_up(request)

        left_s = shortest_timeout_s(call.time_remaining(), known.timeout_s)
        request = self._gateway.start(inputs, left_s, None, tell, are_checked=True)
        if request is not None and not request.is_over:
            give_up(request)
        return True
