"""Calls to a cluster: deploy, status, rollback, discovery."""
