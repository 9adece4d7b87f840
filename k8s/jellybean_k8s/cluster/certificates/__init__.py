"""Certificates of a deployment in its Secrets: rendered, checked, read, renewed."""
