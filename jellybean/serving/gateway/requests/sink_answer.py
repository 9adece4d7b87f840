"""The answer of one sink to one request, collected from the children of its fan-outs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jellybean_agent import (
    WIRE_DTYPES,
    Array,
    FanOutPath,
    PermanentError,
    decode_tensor,
    encode_tensor,
    printable,
)
from jellybean_protos.agent.v1 import agent_pb2


class SinkAnswer:
    """Collects a sink's outputs.

    Each leaf of the tree of fan-outs is a share of the whole; complete when they sum to 1.

    Invariant: `_leaves` holds each leaf once, in whatever order and however often leaves arrive; `size` is the bytes
    of their tensors.
    """

    def __init__(self) -> None:
        self.size = 0
        self._leaves: dict[tuple[int, ...], agent_pb2.Tensor | None] = {}
        self._share = Fraction(0)

    @property
    def parts(self) -> int:
        """Number of leaves."""
        return len(self._leaves)

    def add(self, path: FanOutPath, tensor: agent_pb2.Tensor) -> bool:
        """Add one leaf; True when the answer is now complete.

        `path`: (index, count) per open fan-out. A count of 0 is a fan-out without rows and completes that level.
        """
        share, key = Fraction(1), []
        is_empty = False
        for index, count in path:
            key.append(index)
            if count == 0:
                is_empty = True
                break
            share /= count
        if tuple(key) not in self._leaves:
            self._leaves[tuple(key)] = None if is_empty else tensor
            self._share += share
            self.size += len(tensor.data)
        return self._share >= 1

    def tensor(self, spec: agent_pb2.TensorSpec) -> agent_pb2.Tensor:
        """The leaves in order, concatenated along axis 0; without any, an empty tensor of the sink's dtype and shape.

        PermanentError when the leaves' dtypes or other dimensions differ, or when the dtype is none.
        """
        leaves = [leaf for _, leaf in sorted(self._leaves.items(), key=lambda item: item[0]) if leaf is not None]
        if len(leaves) == 1:
            if leaves[0].dtype not in WIRE_DTYPES:
                raise PermanentError(f"the answer is a tensor of {printable(leaves[0].dtype, 40)!r}, which is no type")
            return leaves[0]
        arrays: list[Array] = [decode_tensor(leaf) for leaf in leaves]
        shapes = {(array.dtype.name, array.shape[1:]) for array in arrays}
        if len(shapes) > 1:
            examples = " and ".join(f"{dtype} of {('n', *rest)}".replace("'", "") for dtype, rest in sorted(shapes)[:2])
            raise PermanentError(f"children's answers have {examples}, which are no one tensor: pad them to one shape")
        if arrays:
            return encode_tensor(np.concatenate(arrays, axis=0))
        return encode_tensor(np.zeros((0, *(max(size, 0) for size in spec.shape[1:])), spec.dtype or "float32"))
