"""The workflow that a gateway serves, as one model of the Open Inference Protocol: sources in, sinks out.

Its version is the start of the plan's hash: another plan is another version.
"""

from __future__ import annotations

from collections.abc import Mapping

from jellybean.serving.gateway.gateway import Gateway
from jellybean_agent import GATEWAY, ModelCounters, ServedModel, StatusError, TensorPort
from jellybean_protos.agent.v1 import agent_pb2

PLATFORM = "jellybean_workflow"
VERSION_DIGITS = 12  # of the plan's hash, as everywhere where people read it


class Workflow:
    """A gateway's one model."""

    name = "jellybean-gateway"

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._ports: tuple[str, tuple[TensorPort, ...], tuple[TensorPort, ...]] | None = (
            None  # of a plan, once workers have told
        )

    @property
    def is_ready(self) -> bool:
        return not self._gateway.refusing

    def models(self) -> Mapping[str, ServedModel]:
        view, reason = self._gateway.view, self._gateway.refusing
        if self._ports is None or self._ports[0] != view.hash:
            self._ports = self._described()
        _, inputs, outputs = self._ports or ("", None, None)
        return {view.name: ServedModel(view.name, view.hash[:VERSION_DIGITS], PLATFORM, reason, inputs, outputs)}

    def _described(self) -> tuple[str, tuple[TensorPort, ...], tuple[TensorPort, ...]] | None:
        """The plan's hash, inputs and outputs; None while a model of theirs is not known."""
        view = self._gateway.view
        inputs = [self._source(name) for name in view.source_outputs]
        outputs = [self._sink(name) for name in view.sinks]
        if None in inputs or None in outputs:
            return None
        return view.hash, tuple(port for port in inputs if port), tuple(port for port in outputs if port)

    def _source(self, name: str) -> TensorPort | None:
        """What fits every model that takes the source's data; None while one of them is not known."""
        found: TensorPort | None = None
        for operator, kind in self._gateway.view.source_outputs[name]:
            signature = self._gateway.signature(operator)
            if signature is None:
                return None
            spec = signature.inputs[name]
            shape = (-1 if kind == "fan_out" else 1, *spec.shape[1:])
            if found is not None and len(found.shape) == len(shape):
                shape = tuple(max(pair) for pair in zip(found.shape, shape, strict=True))
            found = TensorPort(name, spec.dtype, shape)
        return found

    def _sink(self, name: str) -> TensorPort | None:
        """The answer of a sink; below a fan-out the children's, one after another."""
        signature = self._gateway.signature(name)
        if signature is None:
            return None
        spec = signature.outputs[GATEWAY]
        shape = tuple(spec.shape)
        return TensorPort(name, spec.dtype, (-1, *shape[1:]) if self._gateway.view.operators[name].depth else shape)

    def figures(self, model: str) -> ModelCounters:
        found = self._gateway.figures
        seconds = found.answered_s, found.failed_s
        return ModelCounters(found.answered, found.failed, found.answered, None, *seconds, found.last_unix_s)

    async def infer(
        self, model: str, inputs: Mapping[str, agent_pb2.Tensor], timeout_s: float | None
    ) -> Mapping[str, agent_pb2.Tensor]:
        """As any other request; clients' ids are not ours, so two requests of one id may be in hand."""
        outcome, outputs = await self._gateway.infer(inputs, timeout_s)
        if outcome is not None:
            error = StatusError(outcome.status, outcome.reason)
            error.is_logged = True  # by the gateway
            raise error
        return outputs
