"""The optimizer of a run: classes of torch.optim by name, parameter groups, learning rates by update."""
