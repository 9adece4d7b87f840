"""Runs models and Python functions, in this process or in a model process of the pool."""
