"""A pipeline schedule as data: its actions, validation, simulated times and memory."""
