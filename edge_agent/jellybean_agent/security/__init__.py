"""Identities of processes, the policy of who may call what, and the certificates that prove identities."""
