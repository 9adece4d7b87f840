"""Runs models and Python steps: sessions, and the processes that they run in."""
