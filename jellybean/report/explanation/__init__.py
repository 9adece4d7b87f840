"""The text of `explain`."""
