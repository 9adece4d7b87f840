"""Checks of documents against each other and against the files that they name."""
