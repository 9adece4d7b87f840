"""Formatting of figures as text, and the common style of all pictures."""
