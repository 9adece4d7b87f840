"""The cheapest plan that keeps a p99 latency: a search under capacity margins."""
