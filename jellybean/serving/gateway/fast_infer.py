"""The gateway's fast path for ModelInfer calls that resemble an earlier call (`FastInfer`)."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from jellybean.serving.gateway.gateways import Gateways
from jellybean.serving.gateway.plans.source_messages import check_inputs
from jellybean.serving.gateway.workflow_model import WorkflowModels
from jellybean.serving.outcomes import Outcome, Tensors
from jellybean.serving.spool.delivery import Key
from jellybean_agent import (
    AgentError,
    FastInfer,
    RawTensor,
    RequestEnvelope,
    RpcCall,
    StatusError,
    caller_uri,
    describe_error,
    shortest_timeout_s,
)

_MIN_VIEW_BYTES = 2**16  # smaller tensors are copied: a view keeps the whole message that it lies in


class FastWorkflow(FastInfer):
    """Starts requests of known shape without parsing tensors; not those of streams, or that may be kept on disk."""

    def __init__(self, gateways: Gateways, models: WorkflowModels) -> None:
        super().__init__(models)
        self._gateways = gateways
        self._plan = ""  # hash of the plan that the known envelopes were checked against

    def __call__(self, call: RpcCall, data: memoryview) -> bool:
        plan = self._gateways.view.hash
        if self._plan != plan:
            self._known.clear()
            self._plan = plan
        return super().__call__(call, data)

    def _checked(self, model: str, inputs: Tensors) -> Sequence[str]:
        gateway = self._gateways.of(model)
        check_inputs(gateway.view, gateway.signature, inputs)
        return tuple(inputs)

    def _begin(self, call: RpcCall, known: RequestEnvelope, own_id: bytes, tensors: Sequence[memoryview]) -> bool:
        caller = caller_uri(call)
        try:
            gateway = self._gateways.of(known.model, caller)
        except StatusError:
            return False
        if gateway.view.eventually or gateway.view.stateful:
            return False
        inputs = {
            slot.name: RawTensor(
                slot.dtype.name, slot.shape, tensor if len(tensor) >= _MIN_VIEW_BYTES else bytes(tensor)
            )
            for slot, tensor in zip(known.slots, tensors, strict=True)
        }

        def finish(outcome: Outcome | None, outputs: Tensors) -> None:
            call.on_cancel = None
            if outcome is not None:
                call.end(outcome.status, outcome.reason)
            else:
                _reply(call, known, own_id, outputs)

        time_left_s = shortest_timeout_s(call.time_remaining(), known.timeout_s)
        answer_key = Key(caller, own_id.decode()) if own_id else None
        request = gateway.submit(inputs, time_left_s, Key(caller, ""), finish, are_checked=True, answer_key=answer_key)
        if request is not None and not request.is_over:
            call.on_cancel = lambda: gateway.cancel(request)
        return True


def _reply(call: RpcCall, known: RequestEnvelope, own_id: bytes, outputs: Tensors) -> None:
    tensors = [outputs[name] for name in known.names]
    parts = [(tensor.dtype, tuple(tensor.shape), tensor.data) for tensor in tensors]
    try:
        response = known.response(own_id, parts)
    except (AgentError, ValueError, KeyError) as error:  # a data type that the protocol does not have
        call.end(grpc.StatusCode.INTERNAL, f"the answer cannot be encoded: {describe_error(error)}")
        return
    call.reply(response)
