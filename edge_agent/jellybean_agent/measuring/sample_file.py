"""Sample inputs of an operator as one file: a line of JSON that says what each run reads, then numpy arrays.

Equal samples give equal bytes, so that a worker that has the file is not sent it again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jellybean_agent.errors import InvalidInputError
from jellybean_agent.measuring.timed_runs import Inputs
from jellybean_agent.tensors.stacking import OperatorInput
from jellybean_agent.tensors.tensors import Array

_MAX_HEADER_BYTES = 2**24


def sample_file(sample: Sequence[Inputs]) -> bytes:
    """Sample inputs as bytes. Header: for each run and edge the number of children of a gather, null for one tensor."""
    file = io.BytesIO()
    header = [[len(value) if isinstance(value, tuple) else None for value in inputs] for inputs in sample]
    file.write(json.dumps(header).encode() + b"\n")
    for inputs in sample:
        for value in inputs:
            for array in value if isinstance(value, tuple) else (value,):
                np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def read_sample_file(path: Path) -> list[Inputs]:
    """The sample inputs of a file. InvalidInputError if it is none."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline(_MAX_HEADER_BYTES))

            def array() -> Array:
                found: Array = np.lib.format.read_array(file, allow_pickle=False)
                return found

            def value(children: int | None) -> OperatorInput:
                return array() if children is None else tuple(array() for _ in range(children))

            return [tuple(value(children) for children in edges) for edges in header]
    except (ValueError, TypeError, EOFError) as error:
        raise InvalidInputError(f"the sample inputs cannot be read: {error}") from error
