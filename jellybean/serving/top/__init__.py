"""What a run does right now: `jellybean top` and the Grafana dashboard."""
