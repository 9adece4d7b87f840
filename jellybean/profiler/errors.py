"""Errors of profiling that a user can fix."""

from __future__ import annotations

from jellybean.errors import InputError, JellyBeanError


class ProfileError(JellyBeanError):
    """The project cannot be profiled; the text names what is missing or the model that failed."""


class RefusedRowError(ProfileError, InputError):
    """A model refuses a row of the held-out data; the text names operator, variant, source, row, and the value."""


class MisfittingEdgeError(ProfileError, InputError):
    """The output of one operator does not fit the model that takes it, which only its run showed; the text says how."""


class RefusedFunctionError(ProfileError, InputError):
    """A Python function of the workflow may not run here; the text names the option that allows it."""
