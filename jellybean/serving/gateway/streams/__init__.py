"""Streams of requests whose operators keep a state: their order, their place, and how their states move."""
