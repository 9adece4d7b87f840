"""Resource demand of a selection (workers, traffic, memory), and a tree decomposition of the workflow."""
