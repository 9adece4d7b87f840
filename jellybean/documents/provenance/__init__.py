"""Provenance of profiles: what a project's files hold today, this machine, and which entries no longer match them."""
