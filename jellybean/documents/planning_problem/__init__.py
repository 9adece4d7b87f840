"""The planning problem, built from validated documents and profiles."""
