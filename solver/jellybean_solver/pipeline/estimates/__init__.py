"""Estimates of a transformer's training from its size alone: parameters, memory, FLOPs and the devices it needs."""
