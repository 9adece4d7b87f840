"""Command lines of a run's processes, and the files of a plan that they read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jellybean.documents.layout import WORKFLOWS_FOLDER
from jellybean.errors import InputError
from jellybean.folders import LEDGER_FILE, state_folder
from jellybean.process_end import child_process
from jellybean.serving.errors import DeviceError, SettingsError
from jellybean.serving.local.settings import NO_LEDGER
from jellybean.serving.run_processes import AGENT_MODULE, GATEWAY_MODULE
from jellybean_agent import (
    ALLOW_PYTHON_FLAG,
    GATEWAY,
    AgentError,
    PlanView,
    Transport,
    python_refusal,
    read_peer_addresses,
    try_device,
)

PYTHON = [sys.executable, "-P", "-m"]  # -P: modules in the project's folder must not shadow imports


def local_addresses(folder: Path, view: PlanView, gateway: str) -> dict[str, str]:
    """Process name -> address: that of the gateway, and Unix sockets in the plan's folder for its workers."""
    return {GATEWAY: gateway} | {worker.name: f"unix:{folder}/{i}.sock" for i, worker in enumerate(view.serving)}


def remote_addresses(peers: Path, view: PlanView, transport: Transport) -> dict[str, str]:
    """Process name -> address, of a file, which names the gateway and all workers of the plan, each at its own address.

    InputError if it does not.
    """
    try:
        addresses = read_peer_addresses(peers, transport)
    except AgentError as error:
        raise InputError(str(error)) from error
    for name in (GATEWAY, *(worker.name for worker in view.serving)):
        if name not in addresses:
            which = f"worker {name!r} of the plan" if name else 'the gateway, under the empty name ""'
            raise InputError(f"{peers}: no address of {which}")
    first_at: dict[str, str] = {}
    for worker in view.serving:
        if (other := first_at.setdefault(addresses[worker.name], worker.name)) != worker.name:
            raise InputError(f"{peers}: {other!r} and {worker.name!r} have the same address {addresses[worker.name]!r}")
    return addresses


def write_plan(folder: Path, document: Mapping[str, Any], addresses: Mapping[str, str]) -> None:
    """Write a plan and the addresses of its processes into a new folder."""
    folder.mkdir(mode=0o700)
    (folder / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "peers.json").write_text(json.dumps(dict(addresses)), encoding="utf-8")


def require_allowed(view: PlanView, allow_python: frozenset[str]) -> None:
    """SettingsError when an agent would refuse to run a function of the plan."""
    for operator in view.variants:
        if operator.python is not None and (why := python_refusal(operator.python.function, allow_python)) is not None:
            raise SettingsError(f"{operator.name}/{operator.variant}: {why}")


def require_own_modules(view: PlanView) -> None:
    """SettingsError if workflows have different modules of one name, of which an agent would find only the first."""
    found: dict[str, dict[str, str]] = {}
    for operator in view.variants if view.workflows else ():
        if operator.python is not None:
            module = operator.python.function.partition(":")[0]
            found.setdefault(module, {})[operator.python.sha256] = view.workflow_of(operator.name)
    for module, workflows in found.items():
        if len(workflows) > 1:
            names = " and ".join(workflows.values())
            raise SettingsError(f"{names} have different modules {module}.py: give one of them another name")


def require_devices(view: PlanView) -> None:
    """DeviceError if models cannot run here on the device of a worker; tried in a process of its own.

    A process that has used a GPU keeps a part of its memory, which this one would hold as long as it lives.
    """
    workers = {worker.device: worker.name for worker in reversed(view.serving) if not worker.device.is_cpu}
    if not workers:
        return
    with child_process() as pool:
        for device, name in workers.items():
            try:
                pool.submit(try_device, device).result()
            except AgentError as error:
                raise DeviceError(f"{name}: {error}") from error
            except BrokenProcessPool as error:
                raise DeviceError(f"{name}: device {device}: the process that tried it died") from error


def agent_command(
    directory: Path,
    plan_folder: Path,
    worker: str,
    address: str,
    allow_python: frozenset[str] = frozenset(),
    workflows: Sequence[str] = (),
) -> list[str]:
    """The command line of one worker's agent; model paths start at `directory`, and its Python modules are found.

    `workflows`: of the plan, if it has several: their modules are in their folders.
    """
    arguments = [f"--worker={worker}", f"--listen={address}", f"--root={directory}", f"--python-path={directory}"]
    arguments += [f"--python-path={directory / WORKFLOWS_FOLDER / name}" for name in workflows]
    arguments.append(f"--counters={plan_folder / quote(worker, safe='')}.counters")
    arguments += [f"{ALLOW_PYTHON_FLAG}={function}" for function in sorted(allow_python)]
    return [*PYTHON, AGENT_MODULE, *_plan_arguments(plan_folder), *arguments]


def gateway_command(plan_folder: Path, arguments: Sequence[str]) -> list[str]:
    """The command line of the gateway."""
    return [*PYTHON, GATEWAY_MODULE, *_plan_arguments(plan_folder), *arguments]


def ledger_arguments(directory: Path, url: str, run: str) -> list[str]:
    """The gateway's arguments for the ledger.

    `url`: as in `LaunchSettings`; `run`: identifies this start of serving.
    """
    if url == NO_LEDGER:
        return []
    state = state_folder(directory)
    own = (state / LEDGER_FILE).resolve()
    return [f"--ledger={url or own}", f"--live={state / 'ledger.live'}", f"--ledger-run={run}"]


def _plan_arguments(plan_folder: Path) -> list[str]:
    files = {"plan": "plan.json", "peers": "peers.json", "links": "links"}
    return [f"--{name}={plan_folder / file}" for name, file in files.items()]
