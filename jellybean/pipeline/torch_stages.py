"""A model given as a list of modules that call one another in order, for models that no tracer can follow.

Its graph has one operation per module, so that it is profiled, cut and run like a traced one, but between its modules
only; what a module does inside is never looked at (as with the stages of torch.distributed.pipelining).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from jellybean.errors import JellyBeanError
from jellybean.pipeline.call_form import CallForm, step_into
from jellybean.pipeline.torch_state import state_kept
from jellybean.pipeline.torch_trace import CallArguments, TracedModule

STAGES = "stages"  # the tracer of such a graph


class StageChain(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Modules in order: the first takes the model's arguments, each other one what the one before returns.

    A tuple or list of tensors becomes that many arguments. The module with index i has the name `i`.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        for number, module in enumerate(modules):
            self.add_module(str(number), module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        first, *others = self.children()
        value = first(*args, **kwargs)
        for module in others:
            value = module(*value) if isinstance(value, tuple | list) else module(value)
        return value


def stage_graph(chain: StageChain, arguments: CallArguments) -> TracedModule:
    """The graph of a chain. It is run once on the arguments, to see what its modules return; buffers are restored.

    JellyBeanError if a module cannot be run, or returns something that cannot go to the next one.
    """
    results = _results(chain, arguments)
    graph = fx.Graph()
    args, kwargs = arguments.form.nest([graph.placeholder(name) for name in arguments.names])
    returned: list[fx.Node] = []
    for name, result in results:
        node = graph.call_module(name, tuple(args), kwargs)
        returned = _parts(graph, node, result)
        args, kwargs = returned, {}
    leaves, spec = pytree.tree_flatten(results[-1][1])
    places = tuple(number for number, value in enumerate(leaves) if isinstance(value, torch.Tensor))
    constants = tuple(None if number in places else value for number, value in enumerate(leaves))
    graph.output(tuple(returned))
    module = fx.GraphModule({name: chain.get_submodule(name) for name, _ in results}, graph, "Stages")
    return TracedModule(module, arguments.form, CallForm(spec, places, constants), STAGES)


def _results(chain: StageChain, arguments: CallArguments) -> list[tuple[str, Any]]:
    """(name, result) of every module."""
    found: list[tuple[str, Any]] = []
    args, kwargs = arguments.form.nest([value.clone() for value in arguments.tensors])
    with state_kept(chain), torch.no_grad():
        for name, module in chain.named_children():
            if found:
                args, kwargs = _passed_on(*found[-1]), {}
            try:
                found.append((name, module(*args, **kwargs)))
            except Exception as error:  # user code may raise anything
                raise JellyBeanError(f"stage {name} ({type(module).__name__}) cannot be run: {error}") from error
    return found


def _passed_on(name: str, result: Any) -> list[torch.Tensor]:
    """The arguments of the next stage."""
    parts = list(result) if isinstance(result, tuple | list) else [result]
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        raise JellyBeanError(
            f"stage {name} returns {type(result).__name__}; only a tensor or a tuple of tensors goes to the next one"
        )
    return parts


def _parts(graph: fx.Graph, node: fx.Node, result: Any) -> list[fx.Node]:
    """The tensors of a module's result, one operation for each."""
    if isinstance(result, torch.Tensor):
        return [node]
    found = []
    for path, value in pytree.tree_leaves_with_path(result):
        if isinstance(value, torch.Tensor):
            part = node
            for step in path:
                function, key = step_into(step)
                part = graph.call_function(function, (part, key))
            found.append(part)
    return found
