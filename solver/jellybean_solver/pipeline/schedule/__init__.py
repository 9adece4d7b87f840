"""A pipeline schedule as data: actions, validation, simulation, memory."""
