"""What a launcher sets in the environment of its processes. Without torch, which takes seconds to import."""

from __future__ import annotations

import os


def started_by_launcher() -> bool:
    """True if torchrun (or our launcher) started this process."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ
