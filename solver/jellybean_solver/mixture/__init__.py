"""Plans that mix variants: which share of the requests gets which selection, and where each of them runs."""
