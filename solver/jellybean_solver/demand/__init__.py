"""What a selection needs of the fleet (workers, traffic, memory), and a tree decomposition of the workflow."""
