"""Kubernetes quantities of CPU and memory: `250m`, `2Gi`."""

from __future__ import annotations

import math

from jellybean_k8s.manifests.settings import MIB

_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60}


def cores(cpu: float) -> str:
    """CPU quantity, `2` or `250m`, as the API server normalises it."""
    milli = max(1, math.ceil(cpu * 1000 - 1e-6))
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def mebibytes(size: float) -> str:
    """Memory quantity rounded up, `256Mi` or `2Gi`, as the API server normalises it."""
    count = max(1, math.ceil(size / MIB))
    return f"{count // 1024}Gi" if count % 1024 == 0 else f"{count}Mi"


def parse_quantity(quantity: object) -> float:
    """Parse a Kubernetes quantity: 250m, 2Gi, 3."""
    text = str(quantity)
    for unit in sorted(_UNITS, key=len, reverse=True):
        if text.endswith(unit):
            return float(text[: -len(unit)]) * _UNITS[unit]
    return float(text)
