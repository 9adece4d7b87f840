"""The processes of a run: launch, ranks, heartbeats, messages, transport."""
