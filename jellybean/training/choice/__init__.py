"""The choice of a run's schedule and cuts: by times of layers and messages that are measured before it."""
