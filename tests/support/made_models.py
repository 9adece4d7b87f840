"""ONNX files from a seeded generator: each kind of model and file that exporters and people give a tool.

Each has the requests for it, and whether it can be served: then its answers must be those of onnxruntime alone.
What can be served must be, so that refusing everything is no way to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.support import made_graphs, made_signatures
from tests.support.made_model import Generator, MadeModel

KINDS: tuple[Callable[[Path, Generator], MadeModel], ...] = (
    made_signatures.opset,
    made_signatures.dtype,
    made_signatures.cast_output,
    made_signatures.scalars,
    made_signatures.sizes,
    made_signatures.several_inputs,
    made_signatures.recurrent,
    made_signatures.no_tensor,
    made_graphs.weights,
    made_graphs.external,
    made_graphs.control,
    made_graphs.chance,
    made_signatures.names,
    made_graphs.graphs,
    made_graphs.broken,
    made_graphs.quantised,
    made_graphs.heavy,
)


def made_models(folder: Path, seed: int, count: int) -> Iterator[MadeModel]:
    """`count` models in a folder, of each kind in turn."""
    for number in range(count):
        generator = np.random.default_rng([seed, number])
        place = folder / f"{number}"
        place.mkdir()
        yield KINDS[number % len(KINDS)](place / "m.onnx", generator)
