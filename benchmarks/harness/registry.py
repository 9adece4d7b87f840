"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness.result import Result

Benchmark = Callable[[bool], Result]  # True: a short run that only shows that it works
BENCHMARKS: dict[str, Benchmark] = {}


class BenchmarkError(Exception):
    """A benchmark cannot run on this machine; the message says what is missing."""


def benchmark(function: Benchmark) -> Benchmark:
    """Register a benchmark under its function's name."""
    BENCHMARKS[function.__name__] = function
    return function
