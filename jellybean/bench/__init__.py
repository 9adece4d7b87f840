"""Measures a served plan: load, held-out requests, sustained rate, the cost of a hop."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
