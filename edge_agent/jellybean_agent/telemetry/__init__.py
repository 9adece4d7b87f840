"""Logs and OpenTelemetry spans."""
