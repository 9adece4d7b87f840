"""Calls `triton_calls` in a process of its own. Nothing of tritonclient is loaded in the caller's."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

Remote = Callable[..., Any]


@contextmanager
def triton_process() -> Iterator[Remote]:
    """`remote(name, *args)` calls a function of `triton_calls`."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda name, *args, **more: pool.submit(call, name, *args, **more).result(60)


def call(name: str, *args: Any, **more: Any) -> Any:
    return getattr(importlib.import_module("tests.integration.serving.inference.triton_calls"), name)(*args, **more)
