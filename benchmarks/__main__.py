"""`python -m benchmarks [NAME ...] [--smoke | --render]`."""

from __future__ import annotations

from benchmarks import (  # noqa: F401  (each registers itself)
    computing,
    digits,
    fleets,
    gpt2,
    kubernetes,
    latency,
    learning,
    pipelines,
    preparing,
    serving_overhead,
    stages,
    training,
    training_memory,
    vqa,
)
from benchmarks.deadline import compare as deadline  # noqa: F401
from benchmarks.harness.run import main
from benchmarks.middle import compare  # noqa: F401

if __name__ == "__main__":
    main()
