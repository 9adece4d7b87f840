"""Telemetry of libraries, off by default.

A library reads its variable when it is loaded. So each package that may load one, or a user's module,
sets all of them when it is imported itself. Processes that it starts inherit them.
"""

from __future__ import annotations

import os

# Variable -> the value that keeps a library from calling its maker.
TELEMETRY_OFF = {
    # onnxruntime: a device ID in the home folder, look-ups of a host, a thread
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub, below transformers, timm and peft in a user's modules
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # a convention of many libraries, which a user's modules may import
    "DO_NOT_TRACK": "1",
}


def turn_off_telemetry() -> None:
    """Set the variables that the user has not set."""
    for variable, value in TELEMETRY_OFF.items():
        os.environ.setdefault(variable, value)
