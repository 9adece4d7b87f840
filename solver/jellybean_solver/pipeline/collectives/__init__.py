"""All-reduces of gradients: rounds of transfers as data, their validator, counters, simulated time, closed forms."""
