"""What the ledger is asked: cost, counts and accuracy over time."""
