"""Measures a project's variants for planning: latency, memory, message sizes, hop time between agents, accuracy."""

from jellybean.profiler.errors import ProfileError
from jellybean.profiler.measurement_plan import Scope
from jellybean.profiler.profiler import Profiled, measurements, profile, scope_on
from jellybean.profiler.remote.worker_agent import WorkerAgent
from jellybean.profiler.remote.workers import remote_workers

__all__ = [
    "ProfileError",
    "Profiled",
    "Scope",
    "WorkerAgent",
    "measurements",
    "profile",
    "remote_workers",
    "scope_on",
]
