"""Joining a gateway: the token, then the certificate, the plan and the models."""
