"""The driver of a device is read from the system's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean_agent import CPU, Device
from jellybean_agent.system import driver

NVIDIA = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder@U16)
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""


@pytest.mark.parametrize(("text", "wanted"), [(NVIDIA, "NVIDIA 550.54.15"), ("unreadable\n", None), (None, None)])
def test_the_version_is_found_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, wanted: str | None
) -> None:
    path = tmp_path / "version"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    monkeypatch.setitem(driver._FILES, "CUDAExecutionProvider", ("NVIDIA", path))
    assert driver.driver_of(Device("cuda:1")) == wanted


def test_the_cpu_has_none() -> None:
    assert driver.driver_of(CPU) is None
    assert driver.driver_of(Device("openvino")) is None
