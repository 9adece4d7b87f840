"""Measures a served plan: load, held-out requests, sustained rate, the cost of a hop."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
