"""Rates by time: replay of a trace over the current plan (`plan --check TRACE`), and a plan for each of its periods."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
