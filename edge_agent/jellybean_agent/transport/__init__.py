"""Channels and servers, and the message streams between workers."""
