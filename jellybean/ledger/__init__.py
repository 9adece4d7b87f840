"""The ledger: what serving cost, for whom and at which prices, written down while it happens."""
