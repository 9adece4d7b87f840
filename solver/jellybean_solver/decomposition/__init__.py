"""Many workflows on one fleet, each planned by itself at prices of what they share, with a bound for all together."""
