"""Geometry of the topology drawing: layered layout, curves, gauges."""
