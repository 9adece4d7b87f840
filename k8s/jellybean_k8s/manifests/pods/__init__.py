"""Pods of agents, gateway and relay: templates, commands, and settings laid over them."""
