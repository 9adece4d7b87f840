"""Formatting of figures as text, and the common style of all pictures."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
