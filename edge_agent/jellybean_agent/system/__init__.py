"""Helpers for the operating system (sockets, timers, malloc, private files), and the protocol version."""
