"""Live figures of a run: `jellybean top` and the Grafana dashboard."""
