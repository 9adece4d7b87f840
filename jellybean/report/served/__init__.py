"""What was served, by the ledger: cost, counts and curves, beside what plans predicted."""
