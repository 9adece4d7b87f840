"""Read, validate and write the project documents (YAML), and build the planning problem from them."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
