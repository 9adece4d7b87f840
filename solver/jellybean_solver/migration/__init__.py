"""What it costs to go from one plan to another: worker matching and models to load."""
