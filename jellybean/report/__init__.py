"""Predicted and measured figures of a plan: store, report, terminal tables and HTML page."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
