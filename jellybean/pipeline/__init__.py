"""Partitions and pipeline schedules on the user's side: model profiles, ONNX splitting, tables, drawings, traces."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
