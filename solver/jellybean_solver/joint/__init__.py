"""The joint MILP of selection and assignment, and the rows that it shares with other programs."""
