"""What a user may have to mend before profiling works."""

from __future__ import annotations

from jellybean_solver import JellyBeanError


class ProfileError(JellyBeanError):
    """The project cannot be measured as it stands; the text says what is missing or which model failed."""
