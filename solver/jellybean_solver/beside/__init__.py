"""Workflows that are planned beside a plan of others: what stays, what that leaves, and one plan of both."""
