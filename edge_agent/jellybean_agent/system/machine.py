"""This machine, as far as measured times depend on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from jellybean_agent.system.onnxruntime_package import onnxruntime_package

THREADS = 1  # threads of one model, in the profiler as in serving


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and the versions on it. None: not known."""

    cpu: str | None = None
    cores: int | None = None
    system: str | None = None
    onnxruntime: str | None = None
    threads: int | None = None


def this_machine() -> Machine:
    """The machine on which this runs."""
    system = f"{platform.system()} {platform.machine()}"
    return Machine(_cpu(), os.cpu_count() or 1, system, _onnxruntime_version(), THREADS)


def installed_version() -> str | None:
    """Version of JellyBean that is installed here; None if it runs from its source alone."""
    try:
        return importlib.metadata.version("jellybean-serving")
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's name, as far as the system reports it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _onnxruntime_version() -> str | None:
    """Version of the installed onnxruntime, with its package if that has another name; None if there is none."""
    package, version = onnxruntime_package() or ("", None)
    return f"{version} ({package})" if package.removeprefix("onnxruntime") else version
