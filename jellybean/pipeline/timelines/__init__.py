"""A simulated schedule over time: as text, as a picture, and as a trace for Perfetto."""
