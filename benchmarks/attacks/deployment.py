"""Attacks on a deployment of three workflows and two gateways: what the clients of the other workflows notice."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.attacks import compromised_box
from benchmarks.attacks.beside import (
    RATE_PER_S,
    await_answer,
    forget_peak,
    paced,
    peak_mib,
    percentile,
    resident_mib,
)
from benchmarks.harness.result import Table
from benchmarks.overhead.load import Connect, Grpc
from benchmarks.overhead.processes import client_tls
from jellybean_agent import Identity, Role
from jellybean_protos.inference.v2 import inference_pb2 as pb
from tests.support.ended_processes import end_processes
from tests.support.gateways_run import GatewaysRun
from tests.support.three_workflows import WORKERS, three_workflows
from tests.support.tls_run import WORKFLOW

SECONDS, SMOKE_SECONDS = 8.0, 1.0
COMPROMISED = "edge-2"
_INPUTS = {"alpha": ("x", [1, 4]), "beta": ("y", [1, 4])}
_GATEWAYS = 2
_WATCHED = ("gateway-0", "gateway-1", "cloud-1")
_HEADINGS = ("attack", "answered beside it", "p99 alone", "p99 beside it", *(f"{name}, most" for name in _WATCHED))


def deployment(smoke: bool) -> Table:
    """Each attack on a deployment of its own: a client at the first gateway, then a box in each way."""
    seconds = SMOKE_SECONDS if smoke else SECONDS
    rows = [["denied streams of a client", *_attacked("", seconds)]]
    rows += [[f"{attack} of a box", *_attacked(attack, seconds)] for attack in compromised_box.ATTACKS]
    return Table.of(_HEADINGS, rows, "Three workflows, two gateways")


def _attacked(attack: str, seconds: float) -> list[str]:
    """The figures of an attack of the box; an empty one is of a client."""
    with _deployment("") as run:
        alone = _beside(run, seconds)
        if not attack:
            return _figures(run, alone, *_with_client(run, seconds), seconds)
    with _deployment(attack) as run:
        before = _sizes(run)
        return _figures(run, alone, before, _beside(run, seconds), seconds)


def _with_client(run: GatewaysRun, seconds: float) -> tuple[dict[str, float], list[float]]:
    before = _sizes(run)
    folder = run.certificate(Role.CLIENT, "attacker")
    command = [sys.executable, "-m", "benchmarks.attacks.attackers", "denied_streams", str(run.ports[0]), str(folder)]
    with subprocess.Popen([*command, str(seconds + 2.0)]) as attacker:
        time.sleep(min(1.0, seconds))
        times = _beside(run, seconds)
        attacker.kill()
    return before, times


def _figures(
    run: GatewaysRun, alone: list[float], before: dict[str, float], beside: list[float], seconds: float
) -> list[str]:
    sent = round(RATE_PER_S * seconds) * _GATEWAYS * len(_INPUTS)
    times = [f"{1e3 * percentile(times, 0.99):.1f} ms" for times in (alone, beside)]
    most = [f"{peak_mib(run.processes[name].pid):.0f} MiB (from {before[name]:.0f})" for name in _WATCHED]
    return [f"{len(beside)} of {sent}", *times, *most]


def _sizes(run: GatewaysRun) -> dict[str, float]:
    for name in _WATCHED:
        forget_peak(run.processes[name].pid)
    return {name: resident_mib(run.processes[name].pid) for name in _WATCHED}


def _beside(run: GatewaysRun, seconds: float) -> list[float]:
    """The times of all answers to a client of each workflow at each gateway, at once."""
    clients = [_client(run, number, workflow) for number in range(_GATEWAYS) for workflow in _INPUTS]
    with ThreadPoolExecutor(len(clients)) as threads:
        return [time for times in threads.map(lambda connect: paced(connect, seconds), clients) for time in times]


def _client(run: GatewaysRun, number: int, workflow: str) -> Connect:
    name, shape = _INPUTS[workflow]
    request = pb.ModelInferRequest(model_name=workflow)
    request.inputs.add(name=name, datatype="FP32", shape=shape)
    request.raw_input_contents.append(np.ones(shape, np.float32).tobytes())
    message = request.SerializeToString()
    tls = client_tls(run.certificate(Role.CLIENT, f"{workflow}-{number}"), Identity(WORKFLOW, Role.GATEWAY))
    address = ("127.0.0.1", run.ports[number])
    return lambda: Grpc(address, "/inference.GRPCInferenceService/ModelInfer", message, b"", tls)


@contextlib.contextmanager
def _deployment(attack: str) -> Iterator[GatewaysRun]:
    """A deployment that serves two of the workflows. `attack`: of the box; empty: it is no attacker."""
    modules = {COMPROMISED: compromised_box.__name__} if attack else {}
    with tempfile.TemporaryDirectory(prefix="jellybean-attacked-") as folder:
        run = GatewaysRun(Path(folder), three_workflows(Path(folder)), WORKERS, modules=modules)
        try:
            os.environ["JELLYBEAN_ATTACK"] = attack  # which the box's process inherits
            for name in WORKERS:
                run.start(name)
            for number in range(_GATEWAYS):
                run.start_gateway(number)
            for number in range(_GATEWAYS):
                for workflow in _INPUTS:
                    await_answer(_client(run, number, workflow))
            yield run
        finally:
            end_processes(run.processes.values())
