"""Checkpoints and the training state that they hold."""
