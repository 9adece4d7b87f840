"""What goes wrong in training, with what to do next."""

from __future__ import annotations

from jellybean.errors import JellyBeanError


class TrainingError(JellyBeanError):
    """A model, document or checkpoint that cannot be trained, or a rank that went away."""
