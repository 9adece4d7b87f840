"""Find the source of the Python functions that a project names."""

from __future__ import annotations

from pathlib import Path

from jellybean_agent import ModuleSource, find_module_source, split_function_name


def function_source(directory: Path, function: str) -> ModuleSource:
    """The source of the module of `module:function`: an installed one, or one beside the project's workflow.yaml.

    The module is not imported. ModelError if there is none.
    """
    return find_module_source(split_function_name(function)[0], [str(directory)])


def where_to_put_it(function: str) -> str:
    """Advice for a function whose module is not found."""
    module = split_function_name(function)[0].partition(".")[0]
    elsewhere = "if it is installed only where agents run, write its sha256"
    return f"write {module}.py beside workflow.yaml or install it; {elsewhere}"
