"""Pipeline schedules for people: tables, drawings, traces."""
