"""What all benchmarks share: results as data, their files, the page made of them, the registry."""
