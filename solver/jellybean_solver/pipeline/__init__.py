"""Pipeline schedules as data: generators, one validator, one simulator."""
