"""The command group `pipeline`: partition models into pipeline stages, and simulate schedules."""
