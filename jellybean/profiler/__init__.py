"""Measures a project's variants for planning: latency, memory, message sizes, hop time between agents, accuracy."""

from jellybean.profiler.errors import ProfileError
from jellybean.profiler.profiler import Profiled, measurements, profile

__all__ = ["ProfileError", "Profiled", "measurements", "profile"]
