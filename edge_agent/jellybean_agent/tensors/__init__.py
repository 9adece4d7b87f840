"""Tensors between the wire and numpy, stacked into batches and cut apart."""
