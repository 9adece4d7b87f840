"""The shapes that checks expect of built-in steps are those that the steps give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jellybean.documents.checks.step_shapes import with_given_shapes
from jellybean.documents.checks.tensors import ModelSignature, Port, Tensor
from jellybean_agent import steps


@pytest.mark.parametrize(
    ("name", "arguments", "rows"),
    [
        ("cast", {"to": "int64"}, (3, 4)),
        ("normalise", {}, (5, 4, 3)),
        ("softmax", {}, (6,)),
        ("flatten", {}, ()),
        ("flatten", {}, (7,)),
        ("flatten", {}, (3, 4, 5)),
        ("reshape", {"to": [2, -1]}, (3, 4)),
        ("reshape", {"to": 12}, (3, 4)),
        ("reshape", {"to": []}, (1,)),
        ("select", {"index": 1}, (5,)),
        ("select", {"index": 1}, (5, 4)),
        ("channels_first", {}, (6, 5, 3)),
        ("channels_last", {}, (3, 6, 5)),
    ],
)
def test_the_sizes_that_follow_are_those_of_the_step(
    name: str, arguments: dict[str, Any], rows: tuple[int, ...]
) -> None:
    function = getattr(steps, name)
    key = {"softmax": "scores", "channels_first": "picture", "channels_last": "picture"}.get(name, "data")
    (made,) = function({key: np.zeros((2, *rows), np.float32)}, **arguments).values()
    declared = ModelSignature(
        (Port(key, Tensor("float32", (None,) * (1 + len(rows)))),), (Port("y", Tensor("float32", (None,) * made.ndim)),)
    )
    given = [Tensor("float32", (1, *rows))]
    found = with_given_shapes(f"jellybean_agent.steps:{name}", arguments, declared, given)
    assert found.outputs[0].tensor.shape == (None, *made.shape[1:])
    assert with_given_shapes(f"my_steps:{name}", arguments, declared, given) == declared
    unlike = [*given, Tensor("float32", (1, *rows, 2))]
    assert with_given_shapes(f"jellybean_agent.steps:{name}", arguments, declared, unlike).inputs == declared.inputs
