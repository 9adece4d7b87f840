"""Errors of deployment; the message says what to do next."""

from __future__ import annotations

from jellybean_solver import JellyBeanError


class DeployError(JellyBeanError):
    """A plan cannot be deployed, or the cluster refuses it."""
