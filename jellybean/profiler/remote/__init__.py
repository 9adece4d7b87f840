"""Measures variants on workers of the fleet, through their agents."""
