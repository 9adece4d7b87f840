"""Search for the cheapest plan that meets a p99 latency target."""
