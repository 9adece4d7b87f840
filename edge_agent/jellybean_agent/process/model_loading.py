"""Loads a worker's models, each verified against the plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jellybean_agent.brain.messages import GATEWAY
from jellybean_agent.brain.plan_view import OperatorView, PlanView, WorkerView
from jellybean_agent.errors import ModelError
from jellybean_agent.execution.emulation import EmulatedDevice
from jellybean_agent.execution.executor import Executor
from jellybean_agent.execution.model_process import ModelProcess
from jellybean_agent.execution.providers import require_provider
from jellybean_agent.execution.python_code import PythonStep
from jellybean_agent.execution.session import OpenSession, OperatorCode, open_in_process
from jellybean_agent.system.private_files import stays_inside_folder
from jellybean_agent.tensors.ports import state_inputs
from jellybean_agent.worker.stream_states import check_state_ports


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Where a worker's models are, and where they run.

    `root`: folder that model paths start from. `process`: model process to run them in; None: the agent's own process.
    `allow_python`: functions that may run besides the built-in steps.
    """

    root: Path
    process: ModelProcess | None = None
    allow_python: frozenset[str] = frozenset()


def load_executors(view: PlanView, worker: WorkerView, settings: ModelSettings) -> dict[str, Executor]:
    """Load the models of a worker's operators. ModelError names the operator whose model cannot be loaded.

    Nothing is loaded if the worker's device is not here.
    """
    open_session: OpenSession = open_in_process if settings.process is None else settings.process.open
    require_provider(worker.device)
    executors: dict[str, Executor] = {}
    for operator in (view.operators[name] for name in worker.operators):
        try:
            code, sha256 = _code(operator, settings)
            batch = worker.batches[operator.name]
            device, limit_bytes = worker.device, worker.device_memory_bytes.get(operator.name)
            emulated = None if worker.device_s is None else EmulatedDevice(worker.device_s[operator.name])
            executor = Executor(
                code,
                sha256,
                {**operator.input_names, **state_inputs(operator.state)},
                batch=batch,
                emulated=emulated,
                device=device if limit_bytes is None else device.with_memory_limit(limit_bytes),
                open_session=open_session,
            )
            _check_outputs(operator, executor)
            check_state_ports(operator, executor.inputs, executor.outputs)
        except ModelError as error:
            raise ModelError(f"{operator.name}/{operator.variant}: {error}") from error
        executors[operator.name] = executor
    return executors


def _code(operator: OperatorView, settings: ModelSettings) -> tuple[OperatorCode, str]:
    """The model file or function of an operator, and the sha256 of its content."""
    if (python := operator.python) is not None:
        return PythonStep(python.function, python.arguments, settings.allow_python), python.sha256
    if not operator.model_path or not operator.model_sha256:
        raise ModelError("the plan names no model file: it can be planned and simulated, but not served")
    if not stays_inside_folder(operator.model_path):
        raise ModelError(f"model {operator.model_path} is not inside the project's folder")
    return settings.root / operator.model_path, operator.model_sha256


def _check_outputs(operator: OperatorView, executor: Executor) -> None:
    """ModelError unless the model has all outputs that the plan sends, and they are tensors of numbers."""
    downstreams = [downstream for downstream, _ in operator.wiring.outputs] or [GATEWAY]
    for name in dict.fromkeys(operator.output_names.get(downstream) for downstream in downstreams):
        executor.check_output(name)
