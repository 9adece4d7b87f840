"""Targets for the p99 latency of a plan: predicted, searched for and simulated, hard and soft."""
