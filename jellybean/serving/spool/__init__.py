"""Requests that must be answered eventually, kept on disk until they are."""
