"""Partitions and pipeline schedules on the user's side: model profiles, ONNX splitting, tables, drawings, traces."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
