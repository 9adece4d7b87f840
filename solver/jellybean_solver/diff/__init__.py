"""Differences of two plans: variants, workers, placements, links, figures."""
