"""Telemetry of libraries, off by default: every package that may load them, or a user's module, says so when imported.

A library reads its variable when it is loaded, so these are set before. Processes that are started inherit them.
"""

from __future__ import annotations

import os

# Variable -> the value that keeps a library from calling its maker. What the user has set stays as it is.
TELEMETRY_OFF = {
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime: a device ID in the home folder, look-ups of a host, a thread
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub, below transformers, timm and peft in a user's modules
    "DO_NOT_TRACK": "1",  # a convention of many libraries, which a user's modules may import
}


def turn_off_telemetry() -> None:
    """Set the variables that the user has not set."""
    for variable, value in TELEMETRY_OFF.items():
        os.environ.setdefault(variable, value)
