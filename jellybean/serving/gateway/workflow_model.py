"""The workflows that a gateway serves, each a model of the Open Inference Protocol: sources are inputs, sinks outputs.

A model's version is the start of the plan's hash, so a replacement of the plan is a new version.
"""

from __future__ import annotations

from collections.abc import Mapping

from jellybean.serving.gateway.gateway import Gateway
from jellybean.serving.gateway.gateways import Gateways, own_workflow
from jellybean.serving.gateway.streams.streams import StreamChunk
from jellybean.serving.spool.delivery import Key
from jellybean_agent import GATEWAY, ModelCounters, Sequence, ServedModel, StatusError, TensorPort, current_caller
from jellybean_protos.agent.v1 import agent_pb2

PLATFORM = "jellybean_workflow"
VERSION_DIGITS = 12  # digits of the plan's hash shown to users
_Stated = tuple[str, int]  # hash of a plan, and how often what its workers state has changed
_Described = tuple[_Stated, tuple[TensorPort, ...], tuple[TensorPort, ...]]  # then inputs and outputs


class WorkflowModels:
    """The models of a gateway, by the names of the workflows."""

    name = "jellybean-gateway"

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self._models: dict[Gateway, _WorkflowModel] = {}

    @property
    def is_ready(self) -> bool:
        return self._gateways.is_available

    def models(self) -> Mapping[str, ServedModel]:
        """All models; to a client whose certificate is of one workflow, that one."""
        own = own_workflow(current_caller())
        self._models = {gateway: self._models.get(gateway) or _WorkflowModel(gateway) for gateway in self._gateways}
        found = (model.model() for model in self._models.values())
        return {model.name: model for model in found if own in ("", model.name)}

    def check_caller(self, model: str) -> None:
        self._gateways.check_caller(model, current_caller())

    def figures(self, model: str) -> ModelCounters:
        counters = self._gateways.of(model).counters
        seconds = counters.answered_s, counters.failed_s
        return ModelCounters(
            counters.answered, counters.failed, counters.answered, None, *seconds, counters.last_unix_s
        )

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, agent_pb2.Tensor],
        timeout_s: float | None,
        sequence: Sequence | None = None,
        request_id: str = "",
    ) -> Mapping[str, agent_pb2.Tensor]:
        """Answer a request. The protocol's ids need not be unique, so they only name the answer, for its label."""
        chunk, caller = None, current_caller()
        if sequence is not None:
            chunk = StreamChunk(Key(caller, sequence.id), begins=sequence.start, ends=sequence.end)
        gateway = self._gateways.of(model, caller)
        outcome, outputs = await gateway.infer(inputs, timeout_s, caller=caller, chunk=chunk, answer_id=request_id)
        if outcome is not None:
            error = StatusError(outcome.status, outcome.reason)
            error.is_logged = True  # by the gateway
            raise error
        return outputs


class _WorkflowModel:
    """A workflow as a model."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._described: _Described | None = None

    def model(self) -> ServedModel:
        """What is known of it now."""
        view, reason = self._gateway.view, self._gateway.unavailable_reason
        if self._described is None or self._described[0] != self._stated:
            self._described = self._describe()
        _, inputs, outputs = self._described or (None, None, None)
        return ServedModel(view.served_name, view.hash[:VERSION_DIGITS], PLATFORM, reason, inputs, outputs)

    @property
    def _stated(self) -> _Stated:
        return self._gateway.view.hash, self._gateway.plans.served.signatures.changes

    def _describe(self) -> _Described | None:
        """Inputs and outputs of the current plan; None until workers have described all models at sources and sinks."""
        view = self._gateway.view
        inputs = [self._input(name) for name in view.source_outputs]
        outputs = [self._output(name) for name in view.sinks]
        if None in inputs or None in outputs:
            return None
        return self._stated, tuple(port for port in inputs if port), tuple(port for port in outputs if port)

    def _input(self, source: str) -> TensorPort | None:
        """A shape that fits every model that takes the source's data; None before all of them are described."""
        port: TensorPort | None = None
        for operator, edge_kind in self._gateway.view.source_outputs[source]:
            signature = self._gateway.signature(operator)
            if signature is None:
                return None
            spec = signature.inputs[source]
            shape = (-1 if edge_kind == "fan_out" else 1, *spec.shape[1:])
            if port is not None and len(port.shape) == len(shape):
                shape = tuple(max(pair) for pair in zip(port.shape, shape, strict=True))
            port = TensorPort(source, spec.dtype, shape)
        return port

    def _output(self, sink: str) -> TensorPort | None:
        """The answer of a sink; below a fan-out the children are concatenated along axis 0."""
        signature = self._gateway.signature(sink)
        if signature is None:
            return None
        spec = signature.outputs[GATEWAY]
        shape = tuple(spec.shape)
        return TensorPort(sink, spec.dtype, (-1, *shape[1:]) if self._gateway.view.operators[sink].depth else shape)
