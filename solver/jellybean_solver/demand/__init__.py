"""What a selection asks of the fleet: workers, traffic and memory, over a tree decomposition of the workflow."""
