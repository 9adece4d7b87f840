"""Measures a project's variants for planning: latency, memory, message sizes, hop time between agents, accuracy."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
