"""The solver's entry: the cheapest plan with a certificate, or why there is none; models that may be cut."""
