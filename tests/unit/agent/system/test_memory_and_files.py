"""What the system says of memory, files and devices, and how little is needed of it."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jellybean_agent import CPU, Device, Share, stays_inside_folder, this_machine, write_private_file
from jellybean_agent.system import device_memory, memory
from jellybean_agent.system.device_memory import used_device_bytes
from jellybean_agent.system.memory import (
    available_memory_bytes,
    machine_memory_bytes,
    process_memory_bytes,
    resident_bytes,
)
from jellybean_agent.system.onnxruntime_package import onnxruntime_package
from jellybean_agent.system.open_files import raise_open_file_limit
from jellybean_agent.system.sockets import receive_exactly
from jellybean_agent.system.timers import Timer


@pytest.mark.parametrize(
    ("path", "stays"),
    [("a", True), ("a/b.onnx", True), ("..a/b", True), ("../a", False), ("a/../b", False), ("/a", False)],
)
def test_paths_that_stay_inside_their_folder(path: str, stays: bool) -> None:
    assert stays_inside_folder(path) == stays


def test_a_private_file_is_replaced_at_once_and_readable_by_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.with_name("key.part").write_bytes(b"left by a process that was killed")
    for content in (b"one", b"two"):
        write_private_file(path, content)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["key"]  # noqa: PTH208


@pytest.fixture
def files_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the system these files, by the end of their path with _ for / and ., and no others."""
    texts: dict[str, str] = {}

    def path(name: str) -> Path:
        key = name.strip("/").replace("/", "_").replace(".", "_")
        for end, text in texts.items():
            if key.endswith(end):
                (tmp_path / key).write_text(text, encoding="ascii")
                return tmp_path / key
        return tmp_path / "none"

    def give(**files: str) -> None:
        texts.clear()
        texts.update(files)

    monkeypatch.setattr(memory, "Path", path)
    return give


def test_a_control_group_limits_memory(files_of: Callable[..., None]) -> None:
    files_of()
    whole = machine_memory_bytes()
    assert whole == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_memory_bytes() == whole
    files_of(memory_max="1000000")
    assert machine_memory_bytes() == 1_000_000
    files_of(memory_max="max")
    assert machine_memory_bytes() == whole
    files_of(memory_max="1000000", memory_current="999000")
    assert available_memory_bytes() == 1000
    files_of(memory_max="1000000", memory_current="2000000")
    assert available_memory_bytes() == 0
    files_of(proc_meminfo="MemTotal: 9 kB\nMemAvailable:   5 kB\n")
    assert available_memory_bytes() == 5 * 1024
    files_of(proc_meminfo="MemTotal: 9 kB\n")
    assert available_memory_bytes() == whole


def test_the_memory_of_this_process(monkeypatch: pytest.MonkeyPatch, files_of: Callable[..., None]) -> None:
    limits = [(resource.RLIM_INFINITY, 0)]
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: limits[0])
    assert process_memory_bytes() == machine_memory_bytes()
    limits[0] = (4096, 4096)
    assert process_memory_bytes() == 4096
    limits[0] = (2**62, 2**62)
    assert process_memory_bytes() == machine_memory_bytes()
    files_of(proc_self_statm="100 7 3")
    assert resident_bytes() == 7 * os.sysconf("SC_PAGE_SIZE")
    files_of()
    assert resident_bytes() == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_open_files_may_be_as_many_as_the_hard_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, before[1]), before[1]))
        assert raise_open_file_limit() == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_exactly_so_many_bytes_are_received() -> None:
    one, other = socket.socketpair()
    with one, other:
        sender = threading.Thread(target=lambda: [other.sendall(b"ab"), time.sleep(0.01), other.sendall(b"cdef")])
        sender.start()
        assert receive_exactly(one, 5) == b"abcde"
        sender.join()
        assert receive_exactly(one, 0) == b""
        other.close()
        with pytest.raises(ConnectionError, match="the other end is gone"):
            receive_exactly(one, 2)


def test_a_timer_calls_back_once_and_not_after_it_was_closed() -> None:
    async def run() -> None:
        timer, called = Timer(asyncio.get_running_loop()), list[str]()
        timer.call_at(0.0, lambda: called.append("before it is open"))
        timer.open()
        now_s = time.monotonic()
        timer.call_at(now_s + 60.0, lambda: called.append("late"))
        timer.call_at(now_s + 0.01, lambda: called.append("soon"))
        while not called:
            await asyncio.sleep(0.001)
        assert called == ["soon"]
        assert time.monotonic() >= now_s + 0.01
        timer.call_at(0.0, lambda: called.append("due"))
        while len(called) < 2:
            await asyncio.sleep(0.001)
        timer.call_at(time.monotonic() + 0.001, lambda: called.append("closed"))
        timer.close()
        timer.close()
        await asyncio.sleep(0.01)
        assert called == ["soon", "due"]

    asyncio.run(run())


def test_the_machine_is_described() -> None:
    machine = this_machine()
    package = onnxruntime_package()
    assert package is not None
    assert package[0].startswith("onnxruntime")
    assert (machine.cores, machine.threads) == (os.cpu_count(), 1)
    assert machine.onnxruntime is not None
    assert machine.onnxruntime.startswith(package[1])
    assert ("(" in machine.onnxruntime) == (package[0] != "onnxruntime")
    assert machine.cpu and "\n" not in machine.cpu
    assert machine.system == f"{platform.system()} {platform.machine()}"


# -- devices -----------------------------------------------------------------------------------------------------------


def test_devices_and_their_parts() -> None:
    gpu = Device("cuda:1", (("a", "b"), ("session.x", "1")))
    assert (gpu.number, gpu.is_nvidia, gpu.is_cpu, gpu.extra) == (1, True, False, "agent-gpu")
    assert gpu.provider_options == {"device_id": "1", "a": "b"}
    assert gpu.session_entries == {"session.disable_cpu_ep_fallback": "1", "session.x": "1"}
    assert str(gpu) == "cuda:1 (a=b, session.x=1)"
    assert (str(CPU), CPU.share, CPU.session_entries, CPU.is_nvidia, CPU.extra) == ("cpu", None, {}, False, None)
    part = gpu.part(Share("slots", "4"))
    assert part.share == Share("slots", "4")
    assert part.options == (("a", "b"), ("session.x", "1"), ("share.slots", "4"))
    assert part.provider_options == gpu.provider_options
    with pytest.raises(ValueError, match="a device has one share"):
        part.part(Share("mps", "25"))
    limited = Device("cuda").with_memory_limit(1000.9)
    assert limited.provider_options == {"device_id": "0", "gpu_mem_limit": "1000"}
    assert limited.with_memory_limit(5.0) == limited
    assert CPU.with_memory_limit(5.0) == CPU
    assert Device("openvino").provider_options == {"device_type": "CPU", "num_of_threads": "1"}


class Nvml:
    """NVIDIA's library with these devices, by name: bytes in use."""

    class NVMLError(Exception):
        """A fault of the library."""

    def __init__(self, *devices: tuple[str, int]) -> None:
        self.devices, self.is_open = devices, False

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        if name != "GPU-b":
            raise self.NVMLError
        return 1

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.devices[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=self.devices[handle][1])


@pytest.mark.parametrize(
    ("device", "visible", "order", "used"),
    [
        ("cuda", "", "", 10),
        ("cuda:1", "", "", 20),
        ("cuda:2", "", "", None),
        ("cuda:0", "1", "", 20),
        ("cuda:1", "1", "", None),
        ("cuda:0", "GPU-b", "", 20),
        ("cuda:0", "GPU-x", "", None),
        ("cuda:0", " , 1 ,0", "", 20),
        ("cpu", "", "", None),
    ],
)
def test_the_used_memory_of_a_device(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str, order: str, used: int | None
) -> None:
    nvml = Nvml(("H", 10), ("H", 20))
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    assert used_device_bytes(Device(device)) == used
    assert not nvml.is_open


@pytest.mark.parametrize(("order", "used"), [("", None), ("PCI_BUS_ID", 10)])
def test_of_unlike_devices_only_their_place_on_the_bus_is_known(
    monkeypatch: pytest.MonkeyPatch, order: str, used: int | None
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", Nvml(("H", 10), ("L", 20)))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert used_device_bytes(Device("cuda")) == used


def test_without_the_library_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert device_memory.used_device_bytes(Device("cuda")) is None
