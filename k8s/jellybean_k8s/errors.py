"""Errors of deployment; the message says what to do next."""

from __future__ import annotations

from jellybean_solver import JellyBeanError


class DeployError(JellyBeanError):
    """A plan cannot be deployed, or the cluster refuses it."""


class NotDeployedError(DeployError):
    """Nothing is deployed."""


class NoCertificatesError(DeployError):
    """A deployment has no Secrets with certificates here."""
