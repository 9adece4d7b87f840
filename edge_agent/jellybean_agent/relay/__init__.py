"""A relay of byte pipes, so that agents behind NAT only dial out: the relay's process, and what the tunnel shares.

Mutual TLS between gateway and workers runs inside the pipes, end to end, so a relay reads nothing of it.
"""
