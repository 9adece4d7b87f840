"""Drives the brain: messages in, model runs, messages out."""
