"""Re-planning: decides whether to keep or replace a running plan, with migration cost in the objective."""
