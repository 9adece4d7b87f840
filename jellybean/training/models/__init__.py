"""The model of a run: built by the user's function, its pretrained weights and its adapters."""
