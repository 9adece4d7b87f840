"""Measures what a plan must know: latency, memory, message sizes, overhead between agents, accuracy."""

from jellybean.profiler.errors import ProfileError
from jellybean.profiler.profiler import Profiled, profile

__all__ = ["ProfileError", "Profiled", "profile"]
