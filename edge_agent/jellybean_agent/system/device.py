"""The device of a worker: the execution provider of onnxruntime on which its models run, with the provider's options.

Options whose names begin with `session.` are entries of onnxruntime's session configuration; one that begins with
`share.` says which part of a device it is; the others are passed to the provider.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jellybean_agent.system.share import Share

_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "directml": "DmlExecutionProvider",
}
DEVICE_NAMES = tuple(_PROVIDERS)
_NUMBERED = frozenset({"cuda", "tensorrt", "rocm", "migraphx", "directml"})  # providers with an option device_id
_NAME = re.compile(r"(?P<provider>[A-Za-z0-9]+)(?::(?P<number>[0-9]{1,3}))?")
_SESSION_PREFIX = "session."
_SHARE_PREFIX = "share."
_CPU_NODES = "session.disable_cpu_ep_fallback"
_NVIDIA = frozenset({"cuda", "tensorrt"})
_LIMITED = frozenset({"cuda", "rocm"})  # providers with an option gpu_mem_limit: bytes of a session's arena
_MEMORY_OPTION = "gpu_mem_limit"
_EXTRAS = {"cuda": "agent-gpu", "tensorrt": "agent-gpu", "openvino": "agent-openvino"}
_ONE_THREAD = {"openvino": (("device_type", "CPU"), ("num_of_threads", "1"))}  # a model has one thread on any provider


@dataclass(frozen=True, slots=True)
class Device:
    """`name`: `cpu`, `cuda`, `cuda:1`, ..., or the full name of another provider (XnnpackExecutionProvider).

    ValueError for other names; the message says what is wrong with it.
    """

    name: str = "cpu"
    options: tuple[tuple[str, str], ...] = ()  # sorted by name

    def __post_init__(self) -> None:
        """Refuse unknown names, second names of a provider, and numbers of devices that have none."""
        if short := next((name for name, provider in _PROVIDERS.items() if provider == self.name), None):
            raise ValueError(f"{self.name!r} is called {short}")
        match = _NAME.fullmatch(self.name)
        kind = match["provider"] if match else ""
        if kind not in _PROVIDERS and not kind.endswith("ExecutionProvider"):
            raise ValueError(f"{self.name!r} is no device")
        if match and match["number"] and kind not in _NUMBERED:
            raise ValueError(f"{kind} devices have no number")
        if len(shares := self._shares) > 1:
            raise ValueError(f"{' and '.join(share.kind for share in shares)}: a device has one share")

    def __str__(self) -> str:
        """The device in words: its name, and its options if it has any."""
        options = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.name} ({options})" if options else self.name

    @property
    def is_cpu(self) -> bool:
        """True if models run on onnxruntime's own CPU provider."""
        return self.provider == _PROVIDERS["cpu"]

    @property
    def _kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def is_nvidia(self) -> bool:
        """True for devices whose driver is NVIDIA's."""
        return self._kind in _NVIDIA

    @property
    def number(self) -> int:
        """Number of the device among those of its provider. ValueError if its options have another than a number."""
        return int(self.provider_options.get("device_id", "0"))

    @property
    def share(self) -> Share | None:
        """The part of a device that it is; None for a whole one."""
        return next(iter(self._shares), None)

    @property
    def _shares(self) -> list[Share]:
        return [
            Share(name.removeprefix(_SHARE_PREFIX), size)
            for name, size in self.options
            if name.startswith(_SHARE_PREFIX)
        ]

    def part(self, share: Share) -> Device:
        """A part of this device."""
        return Device(self.name, tuple(sorted((*self.options, (f"{_SHARE_PREFIX}{share.kind}", share.size)))))

    def with_memory_limit(self, limit_bytes: float) -> Device:
        """The device for a model that may take so much of its memory.

        Its options go first if they state a limit; the device itself for providers without such a limit.
        """
        if self._kind not in _LIMITED or any(name == _MEMORY_OPTION for name, _ in self.options):
            return self
        return Device(self.name, tuple(sorted((*self.options, (_MEMORY_OPTION, str(int(limit_bytes)))))))

    @property
    def provider(self) -> str:
        """The name of its execution provider in onnxruntime."""
        return _PROVIDERS.get(self._kind, self._kind)

    @property
    def extra(self) -> str | None:
        """The extra of this package that installs an onnxruntime with the provider; None if there is none."""
        return _EXTRAS.get(self._kind)

    @property
    def provider_options(self) -> dict[str, str]:
        """Options of the provider: the number of the device, one thread per model, and what `options` says."""
        number = self.name.partition(":")[2]
        numbered = {"device_id": number or "0"} if self._kind in _NUMBERED else {}
        given = {name: value for name, value in self.options if not name.startswith((_SESSION_PREFIX, _SHARE_PREFIX))}
        return {**dict(_ONE_THREAD.get(self._kind, ())), **numbered, **given}

    @property
    def session_entries(self) -> dict[str, str]:
        """Entries of the session's configuration; unless stated otherwise, no node may fall back to the CPU."""
        given = {name: value for name, value in self.options if name.startswith(_SESSION_PREFIX)}
        return given if self.is_cpu else {_CPU_NODES: "1", **given}


CPU = Device()
