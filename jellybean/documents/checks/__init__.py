"""Checks across documents, and of the files that documents name."""
