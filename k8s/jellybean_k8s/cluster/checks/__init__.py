"""Checks of a cluster before anything is applied."""
