"""How many examples a property runs in each tier: the environment variable HYPOTHESIS_PROFILE names the tier."""

from __future__ import annotations

import os

_TIER = os.environ.get("HYPOTHESIS_PROFILE", "default")
NIGHTLY = _TIER == "nightly"
_FEW = 5  # none has fewer in `make test`


def examples(slow: int, nightly: int | None = None) -> int:
    """Number of examples: `slow` in `make slow` and a third in `make test`; `nightly` in its tier, if given."""
    if NIGHTLY:
        return slow if nightly is None else nightly
    return slow if _TIER == "slow" or slow <= _FEW else max(_FEW, slow // 3)
