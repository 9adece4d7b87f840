"""Benchmarks register themselves: one file each, one function that prints a Markdown table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Benchmark = Callable[[bool], None]  # smoke -> None
BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(function: Benchmark) -> Benchmark:
    """Register a benchmark under its function's name."""
    BENCHMARKS[function.__name__] = function
    return function


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A Markdown table, ready for the README."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
