"""Channels, servers and the message streams between workers."""
