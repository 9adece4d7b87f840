"""Cost of migrating from a running plan to another: matching of old to new workers, and the models to load."""
