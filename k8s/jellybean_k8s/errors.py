"""What can go wrong on the way to a cluster, with what to do next."""

from __future__ import annotations

from jellybean_solver import JellyBeanError


class DeployError(JellyBeanError):
    """A plan that cannot be deployed, or a cluster that does not take it."""
