"""The ledger: what serving cost, for whom and at which prices, written down while it happens."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
