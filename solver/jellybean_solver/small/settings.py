"""Tuned numbers of the beam search over selections. They change its effort, not its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """`width`: partial selections kept per level. A wider beam has better first incumbents and finds them later."""

    width: int = 16
    programs_alone: int = 6  # LPs and MILPs solved before the companion starts; most small problems need no more


DEFAULT_SETTINGS = BeamSettings()
