"""The process beside an agent behind NAT: it dials a relay and pipes connections of both directions through it."""
