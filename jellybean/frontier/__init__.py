"""Pareto frontier of cost and accuracy, and cost by request rate: data, table and picture."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
