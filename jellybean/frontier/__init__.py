"""Pareto frontier of cost and accuracy, and cost by request rate: data, table and picture."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
