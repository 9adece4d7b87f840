"""Memory of a gateway under attack, and what a well-behaved client beside it notices."""
