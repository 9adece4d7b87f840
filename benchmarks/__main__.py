"""`python -m benchmarks [NAME ...] [--smoke | --render]`."""

from __future__ import annotations

from benchmarks import (  # noqa: F401  (each registers itself)
    command_line,
    computing,
    fleets,
    from_models,
    kubernetes,
    latency,
    learning,
    ledger,
    many_workflows,
    mixed_served,
    mixed_variants,
    one_more,
    pipelines,
    relay,
    serving_overhead,
    stages,
    torchgpipe,
    training,
    vqa,
)
from benchmarks.attacks import attacks  # noqa: F401
from benchmarks.deadline import compare as deadline  # noqa: F401
from benchmarks.examples import digits, ocr, split, together  # noqa: F401
from benchmarks.harness.run import main
from benchmarks.middle import compare  # noqa: F401
from benchmarks.time_limits import run  # noqa: F401
from benchmarks.training_runs import (  # noqa: F401
    all_reduce,
    gpt2,
    parameter_server,
    planned_stages,
    preparing,
    schedule_auto,
    tensor_parallel,
    training_memory,
)

if __name__ == "__main__":
    main()
