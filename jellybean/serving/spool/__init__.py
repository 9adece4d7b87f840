"""Requests with `deliver: eventually`: kept on disk until they are answered."""
