"""A module of steps as a team writes it: what each does when it is asked is in its name."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from jellybean_agent import InvalidInputError, step

scale = 2.0


@step(inputs={"x": ("float32", (-1, 4))}, outputs={"y": ("float32", (-1, 4))})
def times(inputs, *, by: float):
    return {"y": inputs["x"] * np.float32(by)}


@step(
    inputs={"x": ("float32", (-1, 4)), "z": ("float32", (-1, 4))},
    outputs={"a": ("float32", (-1, 4)), "b": ("float32", (-1, 4))},
)
def swapped(inputs):
    return {"b": inputs["x"], "a": inputs["z"]}


@step(inputs={"x": ("float32", (-1, 4))}, outputs={"y": ("float32", (-1, 4))})
def told(inputs):
    """Does as the first number says."""
    x = inputs["x"]
    return _ANSWERS.get(int(x[0, 0]), lambda x: {"y": x})(x)


def _raises(_x):
    raise LookupError("no such picture\nand a second line")


def _blames(_x):
    raise InvalidInputError("this is no picture")


def _writes(x):
    x[0, 0] = 1.0


_ANSWERS = {
    2: _raises,
    3: lambda x: {"z": x},
    4: lambda x: {"y": x.astype(np.float64)},
    5: lambda x: {"y": x[:, :2]},
    6: lambda x: [x],
    7: lambda _x: sys.exit(3),
    8: lambda _x: os._exit(7),
    9: lambda _x: time.sleep(60),
    10: _writes,
    11: lambda _x: {"y": [1.0]},
    12: _blames,
}


def plain(inputs):
    return inputs


@step(inputs={"x": ("float32", (-1, int(scale)))}, outputs={"y": ("float32", (-1,))})
def computed(inputs):
    return inputs


@step(inputs={"x": ("float32", ("n",))}, outputs={"y": ("kind", (-1, "sizes"))})
def open_sizes(inputs, *, n=-1, sizes=(3, 4), kind="uint8"):
    return inputs


@step(inputs={"x": ("float32", ())}, outputs={"y": ("float32", (-1,))})
def no_batch(inputs):
    return inputs


@step(inputs={"x": ("text", (-1,))}, outputs={"y": ("float32", (-1,))})
def text(inputs):
    return inputs


@step(inputs={"x": (["float32"], (-1,))}, outputs={"y": ("float32", (-1,))})
def listed(inputs):
    return inputs


@step(inputs={"x": ("float32", (-1,))}, outputs={})
def half(inputs):
    return inputs


@step(inputs={"x": ("float32", (-1,))}, outputs={"y": ("float32", (-1,))})
def many(inputs, more):
    return inputs


@step(inputs={"x": ("float32", (-1,))}, outputs={"y": ("float32", (-1,))})
def big_endian(inputs):
    return {"y": inputs["x"].astype(">f4")}


@step(inputs={"x": ("float32", (-1,))}, outputs={"y": ("float32", (-1,))})
def masked(inputs):
    return {"y": np.ma.masked_array(inputs["x"], inputs["x"] > 1)}
