"""Measures a project's variants for planning: latency, memory, message sizes, hop time between agents, accuracy."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
