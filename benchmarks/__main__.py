"""`python -m benchmarks [NAME ...] [--smoke]`."""

from __future__ import annotations

import argparse

from benchmarks import (  # noqa: F401  (each registers itself)
    computing,
    digits,
    fleets,
    kubernetes,
    latency,
    learning,
    pipelines,
    serving_overhead,
    stages,
    training,
    vqa,
)
from benchmarks.registry import BENCHMARKS

parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
parser.add_argument("names", nargs="*", help=f"any of {', '.join(BENCHMARKS)}; all by default")
parser.add_argument("--smoke", action="store_true", help="short runs that only show that it works")
arguments = parser.parse_args()
unknown = set(arguments.names) - set(BENCHMARKS)
if unknown:
    parser.error(f"no benchmark called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
for name in arguments.names or BENCHMARKS:
    BENCHMARKS[name](arguments.smoke)
