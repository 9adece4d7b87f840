"""The runtime of a worker: passes messages to the brain, runs models, and sends the outputs."""
