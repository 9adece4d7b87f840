"""Serving a plan on this machine: gateway, launcher, client and bench."""
