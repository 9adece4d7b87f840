"""Dynamic loss scaling for float16 (Micikevicius et al. 2018), by the rules of torch.amp.GradScaler.

The loss is multiplied by a scale, so that small gradients do not become 0, and gradients are divided by it before an
update. An update with a gradient that is not finite is skipped and halves the scale; many updates in a row without one
double it.
"""

from __future__ import annotations

from collections.abc import Mapping

GROWTH, BACKOFF = 2.0, 0.5
INITIAL_SCALE, GROWTH_INTERVAL = 2.0**16, 2000  # of GradScaler


class LossScale:
    """The scale, the same on all ranks. `interval`: updates without an overflow after which it doubles."""

    def __init__(self, scale: float = INITIAL_SCALE, interval: int = GROWTH_INTERVAL) -> None:
        self.scale, self._interval, self._finite = scale, interval, 0

    def update(self, *, finite: bool) -> None:
        """Count an update; `finite`: whether all its gradients were."""
        self._finite = self._finite + 1 if finite else 0
        if not finite:
            self.scale *= BACKOFF
        elif self._finite == self._interval:
            self.scale, self._finite = self.scale * GROWTH, 0

    def state(self) -> dict[str, float]:
        """State for a checkpoint."""
        return {"scale": self.scale, "finite_updates": self._finite}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from a checkpoint's state."""
        self.scale, self._finite = float(state["scale"]), int(state["finite_updates"])
