"""Rates by time: replay of a trace over the current plan (`plan --check TRACE`), and a plan for each of its periods."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
