"""Noise of a measured hop: when it is measured again, and what commands say about it."""

from __future__ import annotations

from jellybean.display import formats
from jellybean.documents.schema.profiles import ProfilesDocument

# Relative spread of the rounds above which the hop is measured again. Rounds of a quiet machine differed by 6 %, beside
# two busy processes on two cores by 14 %, beside four by more than 100 %.
NOISY_HOP = 0.25


def hop_noise(profiles: ProfilesDocument) -> str:
    """Why the measured hop is too noisy, in words; empty if it is not, or if it was written by hand."""
    hop = profiles.hop
    if hop is None or hop.noise is None or hop.noise <= NOISY_HOP:
        return ""
    return f"its rounds differed by {formats.percent(hop.noise)}, so the machine was busy"
