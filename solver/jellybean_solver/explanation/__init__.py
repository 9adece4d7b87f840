"""Why a plan is what it is: counterfactual re-solves, forced choices, relaxations and minimum conflicts."""
