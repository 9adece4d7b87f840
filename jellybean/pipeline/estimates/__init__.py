"""Tables and JSON records of estimates that need no model: sizes alone."""
