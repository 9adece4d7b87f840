"""Limits on traffic by which an HTTP/2 client could exhaust the server at little cost to itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FloodLimits:
    """Limits of one connection.

    `idle_frames`: most frames without effect between two answered calls. `resets`, `resets_per_s`: burst (number) and
    sustained rate of calls that the client opens and resets; each answered call allows one more. `streams_per_frame`: a
    frame that makes the server visit all streams counts as one more frame per so many streams.
    """

    idle_frames: int = 10_000
    resets: int = 2_000
    resets_per_s: float = 200.0
    streams_per_frame: int = 64
