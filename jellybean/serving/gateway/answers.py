"""Collects the sinks' outputs of one request until every child has answered."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jellybean_agent import Array, FanOutPath, PermanentError, decode_tensor, encode_tensor
from jellybean_protos.agent.v1 import agent_pb2


class SinkAnswer:
    """The answer of one sink. Each leaf of the tree of fan-outs is a share of the whole; it is done when they sum to 1.

    Invariant: `_parts` holds each leaf once, whatever order and however often they arrive.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[int, ...], agent_pb2.Tensor | None] = {}
        self._share = Fraction(0)

    def add(self, path: FanOutPath, tensor: agent_pb2.Tensor) -> bool:
        """Take one leaf; True when the answer is now complete. A count of 0 stands for all children of that level."""
        share, key = Fraction(1), []
        empty = False
        for index, count in path:
            key.append(index)
            if count == 0:
                empty = True
                break
            share /= count
        if tuple(key) not in self._parts:
            self._parts[tuple(key)] = None if empty else tensor
            self._share += share
        return self._share >= 1

    def tensor(self, spec: agent_pb2.TensorSpec) -> agent_pb2.Tensor:
        """The children's tensors in order along axis 0; without any, an empty tensor of the sink's own type.

        PermanentError where they cannot be put together: the operator's outputs differ in more than their number.
        """
        found = [part for _, part in sorted(self._parts.items(), key=lambda item: item[0]) if part is not None]
        if len(found) == 1:
            return found[0]
        arrays: list[Array] = [decode_tensor(part) for part in found]
        kinds = {(array.dtype.name, array.shape[1:]) for array in arrays}
        if len(kinds) > 1:
            some = " and ".join(f"{kind} of {('n', *rest)}".replace("'", "") for kind, rest in sorted(kinds)[:2])
            raise PermanentError(f"children's answers have {some}, which are no one tensor: pad them to one shape")
        if arrays:
            return encode_tensor(np.concatenate(arrays, axis=0))
        return encode_tensor(np.zeros((0, *(max(size, 0) for size in spec.shape[1:])), spec.dtype or "float32"))
