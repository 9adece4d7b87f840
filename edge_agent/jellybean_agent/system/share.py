"""A part of a device: its kind and size, and how much of the whole it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MIG = re.compile(r"(?P<slices>[1-7])g\.(?P<gigabytes>[1-9][0-9]{0,3})gb")  # as NVIDIA names MIG profiles
_SIZES = {  # kind -> what its sizes look like, and an example
    "mig": (_MIG, "1g.10gb: one of 7 slices, 10 GB"),
    "mps": (re.compile(r"[0-9]{1,3}(\.[0-9]+)?"), "25: percent of the threads"),
    "slots": (re.compile(r"[1-9][0-9]{0,2}"), "4: one of four"),
}
SHARE_KINDS = tuple(_SIZES)
_MIG_SLICES = 7  # compute slices of a GPU that MIG divides
_BYTES_PER_GB = 1e9
_ROUNDING = 1e-9  # of the number of parts


@dataclass(frozen=True, slots=True)
class Share:
    """`mig`: a partition in hardware of this profile (1g.10gb); `mps`: a percentage of the threads (25) under CUDA MPS;
    `slots`: one of so many parts that use the device in turn (4). ValueError for anything else.
    """

    kind: str
    size: str

    def __post_init__(self) -> None:
        """Refuse unknown kinds, and sizes that are no part of a device."""
        if self.kind not in _SIZES:
            raise ValueError(f"{self.kind!r} is no share of a device; write {', '.join(SHARE_KINDS)}")
        pattern, example = _SIZES[self.kind]
        if not pattern.fullmatch(self.size) or not 0 < self.fraction <= 1:
            raise ValueError(f"{self.size!r} is no share by {self.kind}; write for example {example}")

    @property
    def fraction(self) -> float:
        """Its part of the device's computing power, and of what the device costs."""
        if self.kind == "mps":
            return float(self.size) / 100
        match = _MIG.fullmatch(self.size) if self.kind == "mig" else None
        return int(match["slices"]) / _MIG_SLICES if match else 1 / int(self.size)

    @property
    def neighbours(self) -> int:
        """Number of other parts of the device that slow it down when they are busy; MIG keeps parts apart."""
        return 0 if self.kind == "mig" else int(1 / self.fraction + _ROUNDING) - 1

    def memory_bytes(self, whole: float) -> float:
        """Its part of a device's memory: as a MIG profile states it, else in proportion."""
        match = _MIG.fullmatch(self.size) if self.kind == "mig" else None
        return float(match["gigabytes"]) * _BYTES_PER_GB if match else whole * self.fraction
