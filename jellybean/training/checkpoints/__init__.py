"""Checkpoints, and the state that they hold."""
