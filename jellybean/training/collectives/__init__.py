"""Sums of gradients over ranks by point-to-point messages: one interpreter for all ways, in buckets."""
