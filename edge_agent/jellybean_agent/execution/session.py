"""A loaded model, wherever it runs: the interface, and its implementations in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from jellybean_agent.execution.onnx_session import OnnxSession
from jellybean_agent.execution.python_code import PythonStep
from jellybean_agent.execution.python_session import PythonSession
from jellybean_agent.system.device import Device
from jellybean_agent.tensors.ports import TensorPort
from jellybean_agent.tensors.tensors import Array

OperatorCode = Path | PythonStep  # what a variant runs: a model file, or a function of a Python module


class Session(Protocol):
    """A loaded model or function. `outputs` may have ports that are not served (`is_served`)."""

    @property
    def inputs(self) -> tuple[TensorPort, ...]: ...
    @property
    def outputs(self) -> tuple[TensorPort, ...]: ...
    def run(self, feed: Mapping[str, Array]) -> Sequence[Array]:
        """All outputs that are served, for the inputs by name. PermanentError when the run fails."""
        ...


class OpenSession(Protocol):
    """Loads a model file or a function whose content has the given sha256. ModelError when that is impossible.

    Functions run on the CPU, whatever the device.
    """

    def __call__(self, code: OperatorCode, sha256: str, device: Device) -> Session: ...


def open_in_process(code: OperatorCode, sha256: str, device: Device) -> Session:
    """Load into this process."""
    if isinstance(code, PythonStep):
        return PythonSession(code, sha256)
    return OnnxSession.load(code, sha256, device)
