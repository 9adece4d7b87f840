"""Trains models by pipeline parallelism over torch.distributed, by the schedules that the simulator times.

Needs torch: pip install 'jellybean-serving[train]'.
"""
