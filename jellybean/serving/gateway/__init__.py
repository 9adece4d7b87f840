"""The gateway process: takes requests, sends them to workers by the plan's routes and collects the answers."""
