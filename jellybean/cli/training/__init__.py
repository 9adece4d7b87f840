"""Command train: a run on this machine or with torchrun, and its Kubernetes objects."""
