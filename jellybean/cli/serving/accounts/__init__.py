"""Commands that ask or write the ledger: cost, accuracy, history, label, and report --drift."""
