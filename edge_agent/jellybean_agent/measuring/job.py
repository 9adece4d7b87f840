"""What a measuring process does, as JSON: its job, and the lines that it answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jellybean_agent.execution.python_code import PythonStep
from jellybean_agent.execution.session import OperatorCode
from jellybean_agent.system.device import Device


@dataclass(frozen=True, slots=True)
class Job:
    """A variant to measure: its `points` are timed; with `memory` its memory at their batch sizes is measured first.

    `path`: of the model file; empty for a `function`, which has been checked to be allowed. `upstreams`: upstream of
    each input edge -> the model's input, or "". `sample`: file with sample inputs. `points`: (batch size, seconds per
    block, blocks). `folders`: the import path. `memory_bytes`: limit of the process.
    """

    path: str
    sha256: str
    function: str
    arguments: str
    upstreams: Mapping[str, str]
    device: tuple[str, tuple[tuple[str, str], ...]]
    sample: str
    points: tuple[tuple[int, float, tuple[int, ...]], ...]
    folders: tuple[str, ...]
    memory_bytes: int
    memory: bool = False

    @property
    def code(self) -> OperatorCode:
        """The model file or function to load."""
        if not self.function:
            return Path(self.path)
        return PythonStep(self.function, self.arguments, frozenset([self.function]))

    @property
    def on_device(self) -> Device:
        """The device on which it runs."""
        name, options = self.device
        return Device(name, options)


def read_job(values: Mapping[str, Any]) -> Job:
    """A job that was written as JSON."""
    name, options = values["device"]
    points = tuple((batch, seconds, tuple(blocks)) for batch, seconds, blocks in values["points"])
    device = name, tuple((option, value) for option, value in options)
    return Job(**{**values, "device": device, "points": points, "folders": tuple(values["folders"])})
