"""Problems whose cheapest plan misses its p99 latency, and how much a plan that meets it costs."""
