"""Partitions and pipeline schedules on the user's side: model profiles, ONNX splitting, tables, drawings, traces."""
