"""Simple rules to compare a plan with, each at its best."""
