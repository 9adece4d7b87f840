"""The scheduler of a worker as a pure state machine, and a worker's view of the plan."""
