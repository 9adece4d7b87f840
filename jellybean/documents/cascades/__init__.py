"""Cascades: an operator as four, of which the last but one is asked only where the first is not sure.

    first   the cheap variant; answers every request
    unsure  passes on the inputs whose confidence is too low: a fan-out of 0 or 1
    then    the better variant; answers what is passed on
    (own)   under the operator's own name: the later answer where there is one, otherwise the first

So a workflow with a cascade is an ordinary workflow, and is profiled, planned, simulated and served like any other: the
four parts may run on unlike workers, for example the first at the edge and the second in the cloud.
"""
