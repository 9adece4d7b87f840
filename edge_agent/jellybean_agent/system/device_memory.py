"""How much of a device's memory is in use, as far as its driver reports it: NVIDIA's by NVML (package nvidia-ml-py)."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from jellybean_agent.system.device import Device


def used_device_bytes(device: Device) -> int | None:
    """Bytes of the device's memory that all processes use together; None where that cannot be read.

    Of the whole device, because a process in a container has another id for the driver, which then hides its use.
    """
    try:
        import pynvml
    except ImportError:
        return None
    if not device.is_nvidia:
        return None
    with contextlib.suppress(pynvml.NVMLError, ValueError):
        pynvml.nvmlInit()
        try:
            handle = _handle(pynvml, device.number)
            return None if handle is None else int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        finally:
            pynvml.nvmlShutdown()
    return None


def _handle(nvml: Any, number: int) -> Any:
    """NVML's handle of the CUDA device `number`; None if it is not known which one that is.

    NVML numbers devices by their place on the bus, CUDA by CUDA_VISIBLE_DEVICES, and unless CUDA_DEVICE_ORDER says
    otherwise the fastest first, which is the same among equal devices.
    """
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if visible and number >= len(visible):
        return None
    name = visible[number] if visible else str(number)
    if not name.isdigit():
        return nvml.nvmlDeviceGetHandleByUUID(name)
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not by_bus and len({nvml.nvmlDeviceGetName(handle) for handle in handles}) > 1:
        return None
    return handles[int(name)] if int(name) < len(handles) else None
