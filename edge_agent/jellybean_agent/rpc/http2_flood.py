"""Detects floods by an HTTP/2 client: counts frames without effect, and calls that the client resets."""

from __future__ import annotations

from jellybean_agent.rpc.flood_limits import FloodLimits
from jellybean_agent.rpc.frames import ENHANCE_YOUR_CALM, BrokenError


class FloodGuard:
    """The counters of one connection. BrokenError when a limit is exceeded."""

    __slots__ = ("_limits", "_reset_s", "_resets", "idle_frames")

    def __init__(self, limits: FloodLimits) -> None:
        self._limits = limits
        self.idle_frames = 0
        self._resets = 0.0
        self._reset_s = 0.0  # time at which resets were last counted

    def count_idle(self, streams: int = 0) -> None:
        """Count a frame without effect. `streams`: number of streams that the server visited because of it."""
        self.idle_frames += 1 + streams // self._limits.streams_per_frame
        if self.idle_frames > self._limits.idle_frames:
            raise BrokenError(ENHANCE_YOUR_CALM, f"{self._limits.idle_frames} frames without effect")

    def count_reset(self, now_s: float) -> None:
        """Count the reset of a call in progress."""
        allowed = (now_s - self._reset_s) * self._limits.resets_per_s
        self._resets = max(0.0, self._resets - allowed) + 1
        self._reset_s = now_s
        if self._resets > self._limits.resets:
            raise BrokenError(ENHANCE_YOUR_CALM, f"{self._limits.resets} calls that were begun and reset")

    def call_answered(self) -> None:
        """A call was answered: reset the count of idle frames, and allow one more reset."""
        self.idle_frames = 0
        self._resets = max(0.0, self._resets - 1)

    def message_sent(self, size: int) -> None:
        """A response message was sent, which the client answers with window updates."""
        self.idle_frames -= min(self.idle_frames, 2 + 2 * (size >> 14))
