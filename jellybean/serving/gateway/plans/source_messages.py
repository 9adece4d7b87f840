"""A request's input tensors: checked against the models that take them, and cut into messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jellybean.quantities import did_you_mean
from jellybean.serving.gateway.plans.input_advice import ONE_ROW, what_to_send, why_not_cast
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
Signatures = Callable[[str], agent_pb2.Signature | None]  # operator -> its model's signature, None: not known yet


def check_inputs(view: PlanView, signature: Signatures, inputs: Inputs) -> None:
    """InvalidInputError, naming the source, unless there is one tensor per source that fits every model taking it."""
    _check_names(tuple(view.source_outputs), inputs)
    for source, outputs in view.source_outputs.items():
        tensor = inputs[source]
        try:
            array = decode_tensor(tensor)
        except InvalidInputError as error:
            raise InvalidInputError(f"source {source}: {error}") from error
        shape = array.shape
        for operator, edge_kind in outputs:
            found = signature(operator)
            spec = found.inputs[source] if found else agent_pb2.TensorSpec(dtype=tensor.dtype, shape=shape)
            row = (1, *shape[1:]) if edge_kind == "fan_out" and shape else shape
            problem = tensor_mismatch(tensor.dtype, row, spec.dtype, tuple(spec.shape))
            advice = ""
            if problem is not None and edge_kind == "each":
                advice = why_not_cast(array, spec.dtype) or what_to_send(tensor.dtype, shape, spec.dtype, spec.shape)
            if problem is None and (not shape or (edge_kind == "each" and shape[0] != 1)):
                problem = f"one request has a leading dimension of 1, got shape {list(shape)}"
                advice = f"; send array{ONE_ROW}, or each row as a request (`infer --rows`)" if shape else ""
            if problem is not None:
                raise InvalidInputError(f"source {source}: {problem} (for {operator}){advice}")


def _check_names(sources: tuple[str, ...], inputs: Inputs) -> None:
    """InvalidInputError, with the source that was probably meant, unless there is one tensor per source."""
    try:
        check_tensor_names("source", sources, inputs)
    except InvalidInputError as error:
        missing = [source for source in sources if source not in inputs]
        meant = next((hint for name in inputs if name not in sources and (hint := did_you_mean(name, missing))), "")
        if not meant:
            raise
        raise InvalidInputError(f"{error}; {meant}") from error


def source_messages(tensor: Tensor, edge_kind: str) -> list[tuple[list[agent_pb2.Position], Tensor | None]]:
    """The messages of one source on one edge, as (path, tensor): the whole tensor, or one per row of a fan-out.

    A row has a leading dimension of 1. A fan-out without rows is one message of count 0, without a tensor.
    """
    if edge_kind != "fan_out":
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
