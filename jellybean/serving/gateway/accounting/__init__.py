"""What a gateway writes to the ledger."""
