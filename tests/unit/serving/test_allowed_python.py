"""Commands that are printed to be run allow the Python functions of their plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from jellybean.cli.current_plan import next_commands
from jellybean.cli.failures import status_of
from jellybean.cli.serving.joining import Joining
from jellybean.profiler.errors import RefusedFunctionError
from jellybean_solver import ModelRef, Plan, PythonRef
from tests import report_plans as plans


def with_function(plan: Plan, function: str) -> Plan:
    """The plan, whose first operator runs a function."""
    first, *rest = plan.operators
    ref = ModelRef("", "ab" * 32, python=PythonRef(function, "{}", "cd" * 32))
    return replace(plan, operators=(replace(first, model=ref), *rest))


def test_up_is_printed_with_the_functions_of_the_plan(tmp_path: Path) -> None:
    commands = next_commands(tmp_path, with_function(plans.digits(), "prep:centre"))
    assert commands == f"jellybean simulate {tmp_path}, jellybean up {tmp_path} --allow-python prep:centre"
    own = next_commands(tmp_path, with_function(plans.digits(), "jellybean_agent.steps:normalise"))
    assert "--allow-python" not in own


def test_the_agents_command_has_the_functions_of_its_worker(tmp_path: Path) -> None:
    functions = {"box-1": ("prep:centre", "jellybean_agent.steps:cast"), "box-2": ()}
    joining = Joining(tmp_path, {"box-1": "", "box-2": ""}, "gateway.example:7002", functions)
    assert joining.commands("box-1")[1].endswith("--state jellybean-agent --allow-python prep:centre")
    assert joining.commands("box-2")[1].endswith("--state jellybean-agent")
    files = replace(joining, enrol="").commands("box-1")[1]
    assert files.endswith("--no-emulation --allow-python prep:centre")


def test_a_function_that_profile_may_not_run_is_invalid_input() -> None:
    assert status_of(RefusedFunctionError("operator prep, variant centre: not allowed here")) == 2
