"""ModelInfer of a gateway without parsing tensors and without a task for each request, where it is like many others."""

from __future__ import annotations

import grpc
from google.protobuf.message import DecodeError

from jellybean.serving.gateway import Gateway
from jellybean.serving.in_hand import Request, Tensors
from jellybean.serving.inputs import check_inputs
from jellybean.serving.outcomes import Outcome
from jellybean.serving.workflow import Workflow
from jellybean_agent.errors import AgentError, in_words
from jellybean_agent.inference.envelopes import Envelopes, Known, cut, limit_s
from jellybean_agent.inference.service import asked
from jellybean_agent.inference.tensors import inputs_of
from jellybean_agent.rpc.calls import Call
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.inference.v2 import inference_pb2 as pb


class FastInfer:
    """Serves `INFER` raw; for `Server.add_raw`. Requests that may be kept on disk are left to the handler."""

    def __init__(self, gateway: Gateway, workflow: Workflow) -> None:
        self._gateway, self._workflow = gateway, workflow
        self._known = Envelopes()
        self._plan = ""  # that the envelopes are of

    def __call__(self, call: Call, data: memoryview) -> bool:
        """Take a request; False leaves it to the handler."""
        parts, view = cut(data), self._gateway.view
        if parts is None or view.eventually:
            return False
        if self._plan != view.hash:
            self._known.clear()
            self._plan = view.hash
        envelope, own_id, tensors = parts
        known = self._known.get(envelope) or self._read(envelope, data)
        if known is None or not known.fits(own_id, tensors):
            return False
        inputs = {
            slot.name: agent_pb2.Tensor(dtype=slot.dtype.name, shape=slot.shape, data=bytes(tensor))
            for slot, tensor in zip(known.slots, tensors, strict=True)
        }
        self._begin(call, known, bytes(own_id), inputs)
        return True

    def _begin(self, call: Call, known: Known, own_id: bytes, inputs: Tensors) -> None:
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
                call.end(grpc.StatusCode.INTERNAL, f"the answer cannot be told: {in_words(error)}")
                return
            call.reply(response)

        def give_up(request: Request) -> None:
            call.on_cancel = lambda: self._gateway.give_up(request)

        left_s = limit_s(call.time_remaining(), known.timeout_s)
        request = self._gateway.start(inputs, left_s, None, tell, are_checked=True)
        if request is not None and not request.is_over:
            give_up(request)

    def _read(self, envelope: bytes, data: memoryview) -> Known | None:
        """What an envelope asks for, checked with the rest of its request; None where that is wrong or unusual."""
        request = pb.ModelInferRequest()
        try:
            request.ParseFromString(bytes(data))
            model, names, timeout_s = asked(self._workflow, request)
            inputs = inputs_of(request)
            check_inputs(self._gateway.view, self._gateway.signature, inputs)
        except (DecodeError, AgentError):
            return None
        return self._known.keep(envelope, request, model.version, names, timeout_s, tuple(inputs))
