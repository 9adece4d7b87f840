"""Random problems of unlike sites and of many workflows on one fleet, by seed."""
