"""From documents to a checked plan: planning, re-planning, simulation, explanation of a project."""
