"""Tuned numbers of the beam search over selections. They change its effort, not its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """`width`: partial selections that go on at each operator. Wider: better first incumbents, which come later."""

    width: int = 16
    programs_alone: int = 6  # solved before the companion starts: most problems with few choices need no more


DEFAULT_SETTINGS = BeamSettings()
