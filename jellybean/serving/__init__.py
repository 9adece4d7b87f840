"""Serving a plan on this machine: gateway, launcher, client and bench."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
