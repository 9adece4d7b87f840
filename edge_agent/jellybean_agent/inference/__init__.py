"""The Open Inference Protocol v2: what a process serves, as models that any of its clients can ask."""
