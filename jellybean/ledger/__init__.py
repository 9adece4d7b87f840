"""The ledger: what serving cost, for whom and at which prices, written down while it happens."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
