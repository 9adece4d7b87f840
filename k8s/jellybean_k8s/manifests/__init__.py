"""Renders a plan or a training run as Kubernetes objects; pure functions."""
