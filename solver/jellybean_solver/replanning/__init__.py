"""Re-planning: keep a running plan or replace it, with migration cost in the objective."""
