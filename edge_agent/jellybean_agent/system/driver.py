"""The driver of a device, which its times depend on, as far as the system reports it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from jellybean_agent.system.device import Device

_VERSION = re.compile(r"\b\d+(\.\d+)+\b")
_FILES = {  # provider -> name of the driver, and the file of Linux with its version
    "CUDAExecutionProvider": ("NVIDIA", Path("/proc/driver/nvidia/version")),
    "TensorrtExecutionProvider": ("NVIDIA", Path("/proc/driver/nvidia/version")),
    "ROCMExecutionProvider": ("amdgpu", Path("/sys/module/amdgpu/version")),
    "MIGraphXExecutionProvider": ("amdgpu", Path("/sys/module/amdgpu/version")),
}


def driver_of(device: Device) -> str | None:
    """Name and version of a device's driver; None for devices without one, and where it is not known."""
    name, file = _FILES.get(device.provider, ("", Path()))
    if not name:
        return None
    with contextlib.suppress(OSError):
        found = _VERSION.search(file.read_text(encoding="utf-8", errors="replace"))
        return f"{name} {found[0]}" if found else None
    return None
