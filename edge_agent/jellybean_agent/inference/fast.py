"""The fast path of ModelInfer: repeated requests are neither parsed nor given a task of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from jellybean_agent.errors import AgentError
from jellybean_agent.inference.envelopes import Envelopes, RequestEnvelope, split_request
from jellybean_agent.inference.models import InferenceBackend
from jellybean_agent.inference.service import resolve_request
from jellybean_agent.inference.tensors import inputs_of
from jellybean_agent.rpc.calls import RpcCall
from jellybean_agent.rpc.parsed_size import SMALL_BYTES
from jellybean_protos.agent.v1 import agent_pb2
from jellybean_protos.inference.v2 import inference_pb2 as pb


class FastInfer(ABC):
    """Serves ModelInfer raw, for `RpcServer.add_raw`. A subclass checks requests against its models and runs them."""

    def __init__(self, served: InferenceBackend) -> None:
        self._served = served
        self._known = Envelopes()

    def __call__(self, call: RpcCall, data: memoryview) -> bool:
        """Serve a request. False: not served here, the general handler must take it."""
        parts = split_request(data)
        if parts is None:
            return False
        envelope, own_id, tensors = parts
        if len(envelope) > SMALL_BYTES:
            return False
        known = self._known.get(envelope) or self._read(envelope, data)
        if known is None or not known.fits(own_id, tensors):
            return False
        return self._begin(call, known, bytes(own_id), tensors)

    def _read(self, envelope: bytes, data: memoryview) -> RequestEnvelope | None:
        """Parse a request and cache its envelope; None if the request is invalid or unusual."""
        request = pb.ModelInferRequest()
        try:
            request.ParseFromString(bytes(data))
            if any(name.startswith("sequence_") for name in request.parameters):
                return None
            model, names, timeout_s = resolve_request(self._served, request)
            order = self._checked(model.name, inputs_of(request))
        except (DecodeError, AgentError):
            return None
        return self._known.add(envelope, request, model.version, names, timeout_s, order)

    @abstractmethod
    def _checked(self, model: str, inputs: Mapping[str, agent_pb2.Tensor]) -> Sequence[str]:
        """The names of the inputs, in the model's order. AgentError if the tensors do not fit the model."""

    @abstractmethod
    def _begin(self, call: RpcCall, known: RequestEnvelope, own_id: bytes, tensors: Sequence[memoryview]) -> bool:
        """Start a request; False if it must take the general path. `tensors`: in the order of the model's inputs, of
        checked sizes.
        """
