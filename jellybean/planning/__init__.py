"""From documents to a checked plan: planning, re-planning, simulation, explanation of a project."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
