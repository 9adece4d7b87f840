"""The solver beside a plain joint MILP on problems of middle size."""
