"""A request's tensors at the gateway: checked before anything is sent, then cut into the messages of an edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jellybean_agent import (
    InvalidInputError,
    PlanView,
    RawTensor,
    check_tensor_names,
    decode_tensor,
    tensor_mismatch,
)
from jellybean_protos.agent.v1 import agent_pb2

Tensor = agent_pb2.Tensor | RawTensor
Inputs = Mapping[str, agent_pb2.Tensor] | Mapping[str, RawTensor]  # by source
Signatures = Callable[[str], agent_pb2.Signature | None]


def check_inputs(view: PlanView, signature: Signatures, inputs: Inputs) -> None:
    """InvalidInputError unless there is one tensor per source, and each fits the models that take it.

    Whoever sends a wrong tensor learns it here, by the source's name, and no worker is bothered.
    """
    check_tensor_names("source", tuple(view.source_outputs), inputs)
    for source, outputs in view.source_outputs.items():
        tensor = inputs[source]
        try:
            shape = decode_tensor(tensor).shape
        except InvalidInputError as error:
            raise InvalidInputError(f"source {source}: {error}") from error
        for operator, kind in outputs:
            found = signature(operator)
            wanted_spec = found.inputs[source] if found else agent_pb2.TensorSpec(dtype=tensor.dtype, shape=shape)
            row = (1, *shape[1:]) if kind == "fan_out" and shape else shape
            why = tensor_mismatch(tensor.dtype, row, wanted_spec.dtype, tuple(wanted_spec.shape))
            if why is None and (not shape or (kind == "each" and shape[0] != 1)):
                why = f"one request has a leading dimension of 1, got shape {list(shape)}"
            if why is not None:
                raise InvalidInputError(f"source {source}: {why} (for {operator})")


def children(tensor: Tensor, kind: str) -> list[tuple[list[agent_pb2.Position], Tensor | None]]:
    """A source's tensor as the messages of an edge: whole, or one row each with a leading dimension of 1."""
    if kind != "fan_out":
        return [([], tensor)]
    count = tensor.shape[0]
    if count == 0:
        return [([agent_pb2.Position(index=0, count=0)], None)]
    size = len(tensor.data) // count
    shape, data = (1, *tensor.shape[1:]), tensor.data
    return [
        (
            [agent_pb2.Position(index=row, count=count)],
            RawTensor(tensor.dtype, shape, data[row * size : (row + 1) * size]),
        )
        for row in range(count)
    ]
