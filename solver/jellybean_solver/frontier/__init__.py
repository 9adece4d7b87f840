"""Exact Pareto curves of cost over accuracy and over rate, each point a plan with its own certificate."""
