"""Audits: a share of the answered requests also runs the plan's reference, and the two answers are compared."""
