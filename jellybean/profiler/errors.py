"""Errors of profiling that a user can fix."""

from __future__ import annotations

from jellybean_solver import JellyBeanError


class ProfileError(JellyBeanError):
    """The project cannot be profiled; the text names what is missing or the model that failed."""
