"""Repairs what others deleted or changed of a resource's deployment."""

from __future__ import annotations

from dataclasses import dataclass, field

from jellybean.operator.pace import Pace
from jellybean_k8s import Cluster, Drift, LockedError, heal, json_sha256

_CALM_S = 120.0  # without a difference, after which the next is repaired at once


@dataclass
class Healing:
    """Repairs at once, then ever more rarely what is changed again and again: by another controller, say."""

    _pace: Pace = field(default_factory=lambda: Pace(0.0))
    _last_s: float = 0.0

    def repair(self, cluster: Cluster, app: str, drift: Drift, now_s: float) -> bool:
        """Apply the differing objects again; True if that was done. Not while a deployment runs."""
        if not drift.keys:
            if now_s - self._last_s >= _CALM_S:
                self._pace.reset()
            return False
        if not self._pace.due(json_sha256(sorted(drift.keys)), now_s):
            return False
        try:
            applied = heal(cluster, app)
        except LockedError:
            return False
        self._last_s = now_s
        self._pace.failed(now_s)  # the same difference is repaired later, if it comes back
        return bool(applied)
