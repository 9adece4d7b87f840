"""Own steps in a process, in a process that may fork: prints as JSON what each was answered with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from jellybean_agent import AgentError, Executor, PythonStep, find_module_source
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.process_pool import ModelProcessPool

if __name__ == "__main__":
    sha256 = find_module_source("own_steps").sha256
    allowed = frozenset({"own_steps:told", "own_steps:swapped", "own_steps:times"})
    found: dict[str, object] = {}
    with ModelProcessPool() as pool:
        process = ModelProcess(pool, run_limit_s=float(sys.argv[1]))

        def opened(function: str, *inputs: str, arguments: str = "{}") -> Executor:
            return Executor(
                PythonStep(f"own_steps:{function}", arguments, allowed), sha256, inputs, open_session=process.open
            )

        told = opened("told", "x")
        for what in (0, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 1):
            try:
                found[str(what)] = told.run((np.float32([[what, 1, 2, 3]]),)).outputs["y"].tolist()
            except AgentError as error:
                found[str(what)] = str(error) if what != 12 else f"{type(error).__name__}: {error}"
        twice, thrice = (opened("times", "x", arguments=json.dumps({"by": by})) for by in (2, 3))
        ones = np.ones((1, 4), np.float32)
        found["by"] = [float(one.run((ones,)).outputs["y"][0, 0]) for one in (twice, thrice, twice)]
        swapped = opened("swapped", "x", "z").run((ones, 2 * ones)).outputs
        found["swapped"] = [swapped["a"].tolist(), swapped["b"].tolist()]
        classifier = Executor(Path(sys.argv[2]), sys.argv[3], ("X",), open_session=process.open)
        found["classifier"] = {name: array.tolist() for name, array in classifier.run((ones,)).outputs.items()}
        found["imported"] = "own_steps" in sys.modules
        process.close()
        process = ModelProcess(pool, run_limit_s=0.5)
        hangs = opened("told", "x")
        try:
            hangs.run((np.float32([[9, 1, 2, 3]]),))
        except AgentError as error:
            found["9"] = str(error)
        process.close()
    print(json.dumps(found))
