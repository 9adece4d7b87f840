"""Stages of a torch module, and the interpreter that runs a schedule on them."""
