"""A worker at work: drives the brain with messages, runs models, and sends the outputs."""
