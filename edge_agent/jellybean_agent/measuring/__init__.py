"""Measures a model's time and memory, in the profiler and on a worker alike."""
