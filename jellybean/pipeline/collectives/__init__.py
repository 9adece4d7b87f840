"""Compares all-reduces: table, JSON record and picture."""
