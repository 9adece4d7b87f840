"""Commands that plan: profile, plan, simulate, explain, frontier, diff."""
