"""Limits on what an HTTP/2 client may send that costs it nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FloodLimits:
    """`idle_frames`: frames without effect between two answered calls. `resets`, `resets_per_s`: burst and sustained
    rate of calls that are opened and reset; one more per answer. `streams_per_frame`: a frame that makes the server
    visit all streams counts once more per so many.
    """

    idle_frames: int = 10_000
    resets: int = 2_000
    resets_per_s: float = 200.0
    streams_per_frame: int = 64
