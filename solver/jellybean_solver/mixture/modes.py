"""Modes: how busy the workers of an operator may be, and how many requests they may run at once.

Under a p99 target both are limited, per operator: a larger batch takes less time per request but makes each request
wait longer, and a busier worker makes it queue longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jellybean_solver.model.workflow import Times, best_batch, request_s


@dataclass(frozen=True, slots=True)
class Modes:
    """Limits by operator; one that is not listed has none. `batches`: largest run. `levels`: shares of the cap."""

    batches: Mapping[str, int] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((frozenset(self.batches.items()), frozenset(self.levels.items())))

    def with_batch(self, name: str, size: int) -> Modes:
        """The same with another largest run of an operator."""
        return replace(self, batches={**self.batches, name: size})

    def with_level(self, name: str, level: float) -> Modes:
        """The same with another share of the utilisation cap for an operator."""
        return replace(self, levels={**self.levels, name: level})

    def of(self, name: str, times: Times) -> tuple[int, float]:
        """The batch size of a variant with these times, and its workers relative to those without limits."""
        batch, least_s = self.batch(name, times), request_s(times, max(times))
        factor = request_s(times, batch) / least_s if least_s > 0 else 1.0
        return batch, factor / self.levels.get(name, 1.0)

    def batch(self, name: str, times: Times) -> int:
        """The batch size of least time per request among those allowed."""
        most = self.batches.get(name)
        return max(times) if most is None else best_batch({size: times[size] for size in times if size <= most})


NO_LIMITS = Modes()
