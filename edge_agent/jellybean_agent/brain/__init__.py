"""The worker's scheduler as a pure state machine, its messages, and a worker's view of the plan."""
