"""The planning problem, the plan that answers it, and `evaluate`, which scores a plan against a problem."""
