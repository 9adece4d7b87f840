"""Commands that plan and predict: profile, plan, explain, frontier, simulate, diff."""
