"""Plans in words and tables: one, many workflows in groups, and how one differs from another."""
