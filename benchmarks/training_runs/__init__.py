"""Whole training runs: speed, memory and preparation of models."""
