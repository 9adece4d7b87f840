"""Whose fault it is that a model cannot compute with the values of its inputs: the client's, or an operator's."""

from __future__ import annotations

from jellybean_agent.brain.messages import RunOperator
from jellybean_agent.brain.plan_view import PlanView
from jellybean_agent.errors import AgentError, InvalidInputError, PermanentError, RefusedValuesError
from jellybean_agent.execution.python_code import is_builtin
from jellybean_agent.worker.run_outputs import is_direct_call


def attribute_error(view: PlanView, run: RunOperator, error: RefusedValuesError) -> AgentError:
    """The error to report for a run, with the variant.

    InvalidInputError (a client error) if the values are those of the request; PermanentError (a server error) if
    another operator computed them, as the workflow is then wrong.
    """
    operator = view.operators[run.operator]
    if is_direct_call(run) or _reads_request(view, run.operator):
        text = f"variant {operator.variant} cannot compute with the values of this request: {error}"
        return InvalidInputError(text)
    upstreams = " and ".join(upstream for upstream, _ in operator.wiring.inputs)
    return PermanentError(f"variant {operator.variant} cannot compute with the output of {upstreams}: {error}")


def _reads_request(view: PlanView, operator: str) -> bool:
    """True if all inputs of an operator have the request's values: from sources, or through built-in steps."""
    for upstream, _ in view.operators[operator].wiring.inputs:
        if upstream in view.all_source_outputs:
            continue
        code = view.operators[upstream].python
        if code is None or not is_builtin(code.function) or not _reads_request(view, upstream):
            return False
    return True
