"""The planning problem and the plan: what is asked, what is answered, and the one scorer of both."""
