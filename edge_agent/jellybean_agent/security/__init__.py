"""Who a peer is, what it may call, and the certificates that prove it."""
