"""Cost of going from a running plan to another: which worker continues as which, and the models to load."""
