"""Helpers of the inference tests: addresses of workers, inputs, and comparison of answers."""

from __future__ import annotations

import grpc
import numpy as np

from jellybean.serving import Running
from jellybean_protos.inference.v2 import inference_pb2 as pb

SERVICE = "inference.GRPCInferenceService"


def inputs(seed: int = 0) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed)
    return {name: drawn.normal(size=(1, size)).astype(np.float32) for name, size in (("x", 4), ("y", 6))}


def floats(count: int) -> np.ndarray:
    return np.ones((1, count), np.float32)


def address(running: Running, worker: str) -> str:
    return next(process.address for process in running.state.processes if process.name == worker)


def same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert (array.dtype, array.shape, array.tobytes()) == (
            theirs[name].dtype,
            theirs[name].shape,
            theirs[name].tobytes(),
        )


def infer_on(channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable:
    return channel.unary_unary(f"/{SERVICE}/ModelInfer", response_deserializer=pb.ModelInferResponse.FromString)
