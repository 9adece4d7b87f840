"""The agent as a process: its server, health and metrics."""
