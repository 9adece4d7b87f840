"""Measurements of speed and of prediction: `python -m benchmarks` runs all, `--smoke` a short version of each."""
