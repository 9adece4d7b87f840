"""The options that allow a plan's Python functions, for commands that are printed to be run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from jellybean_agent import python_refusal
from jellybean_solver import Plan


def allow_python_options(functions: Iterable[str]) -> str:
    """Options that allow these functions, with a space before each; none for the agent's own steps."""
    needed = sorted({function for function in functions if python_refusal(function, frozenset()) is not None})
    return "".join(f" --allow-python {shlex.quote(function)}" for function in needed)


def options_for_plan(plan: Plan) -> str:
    """The options with which `up` and `apply` may run the functions of a plan."""
    models = (operator.model for operator in plan.variants)
    return allow_python_options(model.python.function for model in models if model is not None and model.python)
