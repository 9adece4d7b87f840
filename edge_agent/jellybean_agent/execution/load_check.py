"""Whether onnxruntime loads a model file here, and what to do if it does not: for checks before anything is served."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

from jellybean_agent.errors import ModelError
from jellybean_agent.execution.model_process import WorkLimit
from jellybean_agent.execution.providers import CODES
from jellybean_agent.execution.tried_models import trial_process
from jellybean_agent.system.device import CPU

_NO_KERNEL = "NOT_IMPLEMENTED"  # by the provider of the CPU: that of another device may have it
_EXPORT = "export it again"
_CRASHED = " crashed: its process "
_NEW_VERSIONS = re.compile(r"IR version|official support for domain|opset version", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LoadProblem:
    """Why a model is not loaded. `on_cpu_only`: the provider of another device may load it."""

    reason: str
    hint: str
    on_cpu_only: bool = False

    def __str__(self) -> str:
        return f"{self.reason}; {self.hint}"


def load_problem(path: Path, sha256: str, work: WorkLimit | None = None) -> LoadProblem | None:
    """Why onnxruntime does not load a model file on the CPU here, in a process of its own; None if it does.

    The error of `work` if that ends the load.
    """
    try:
        trial_process().open(path, sha256, CPU, work=work).close()
    except ModelError as error:
        return load_problem_of(error)
    return None


def load_problem_of(error: ModelError) -> LoadProblem:
    """What a `ModelError` of loading says, without onnxruntime's codes, and the next step."""
    text = " ".join(str(error).split())
    code = CODES.search(text)
    if _CRASHED in text:
        hint = "no worker could serve it: export it again, or ask its maker"
        return LoadProblem(text.removesuffix("; it is loaded again"), hint)
    if code is None:
        return LoadProblem(text.removesuffix(f": {_EXPORT}"), _EXPORT)
    reason = f"onnxruntime {ort.__version__} does not load the model: {text[code.end() :]}"
    if code[1] == _NO_KERNEL:
        hint = (
            "export it for opset 13 or newer, with types that the CPU computes with (float32), or plan it for a device "
            "that has them"
        )
        return LoadProblem(reason, hint, on_cpu_only=True)
    if _NEW_VERSIONS.search(reason):
        hint = "export it for an older opset or IR version, or install a newer onnxruntime"
        return LoadProblem(reason, hint)
    return LoadProblem(reason, "export it again, and try it with onnxruntime.InferenceSession")
