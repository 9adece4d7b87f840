"""Training data: where rows come from, how they are divided into micro-batches, and how ranks read them."""
