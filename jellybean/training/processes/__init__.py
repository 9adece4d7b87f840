"""The processes of a training run: ranks, their messages and heartbeats."""
