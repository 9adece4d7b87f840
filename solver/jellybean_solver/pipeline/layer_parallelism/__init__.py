"""Bytes that single layers send in training under data and tensor parallelism."""
