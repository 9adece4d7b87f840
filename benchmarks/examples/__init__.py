"""Whole runs of examples: predicted and measured figures."""
