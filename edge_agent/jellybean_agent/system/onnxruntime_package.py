"""Which package's onnxruntime is installed here: builds with other execution providers have packages of their own."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path


@cache  # the search through all installed packages takes longer than what asks for it
def onnxruntime_package() -> tuple[str, str] | None:
    """(package, version) of the onnxruntime that an import loads, without importing it; None if there is none."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent.parent
    installed = (
        (distribution.metadata["Name"], distribution.version)
        for distribution in importlib.metadata.distributions(path=[str(folder)])
        if distribution.metadata["Name"].startswith("onnxruntime")
    )
    return next(installed, None)
