"""The commands that are interrupted, with the projects that they work on, each at several moments."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.commands import jellybean
from benchmarks.time_limits.problems import write_problem

SOON, MIDDLE, LATE = 0.3, 1.5, 4.0  # seconds after the start: imports, the work, and what follows it
SHORT = (0.2, 0.5, 0.8)  # of commands that take about a second
LAYERS = 3_000
FLEET = 3  # seed of the fleet with a p99 target
TRACE = "time_s,source,rate_per_s\n0,camera,{low}\n3600,camera,{high}\n7200,camera,{low}\n10800,camera,{low}\n"

TRAINING = """\
kind: Training
device: cpu
model: nets.py:net
data: nets.py:data
loss: nets.py:loss
epochs: 200
batch: 8
microbatches: 2
optimizer: {name: sgd, lr: 0.01}
"""
NETS = """\
import time

import torch


def net():
    return torch.nn.Sequential(torch.nn.Linear(9, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))


def data():
    rows = torch.randn(96, 9, generator=torch.Generator().manual_seed(1))
    return {"train": (rows, rows[:, :3].argmax(1)), "test": (rows, rows[:, :3].argmax(1))}


def loss(outputs, targets):
    time.sleep(0.02)
    return torch.nn.functional.cross_entropy(outputs, targets)
"""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A command, and the seconds after its start at which it is interrupted. `status`: of its exit."""

    row: str
    arguments: Sequence[str]
    moments: Sequence[float] = field(default=(SOON, MIDDLE, LATE))
    statuses: tuple[int, ...] = (130,)


@contextmanager
def interrupted_commands(folder: Path) -> Iterator[Sequence[Interrupted]]:
    """The commands, with their projects in a folder, a plan that is served, and an API server that never answers."""
    fleet, digits, training = folder / "fleet", folder / "digits", folder / "training"
    write_problem(FLEET, fleet)
    trace = fleet / "trace.csv"
    trace.write_text(TRACE.format(low=1, high=2), encoding="utf-8")
    jellybean("plan", str(fleet), "--time-limit", "5")
    jellybean("init", "digits", str(digits))
    jellybean("plan", str(digits), "--stale")
    training.mkdir()
    (training / "training.yaml").write_text(TRAINING, encoding="utf-8")
    (training / "nets.py").write_text(NETS, encoding="utf-8")
    profile = folder / "layers.txt"
    profile.write_text("\n".join(_layers()), encoding="utf-8")
    (digits / "kubernetes.yaml").write_text(KUBERNETES, encoding="utf-8")
    jellybean("certs", str(digits))
    idle = folder / "idle"
    jellybean("init", "digits", str(idle))
    jellybean("plan", str(idle), "--stale")
    inputs = ("--input", f"strip={digits / 'data' / 'heldout.npz'}#strips")
    with _silent_server(folder) as kubeconfig, _served(digits):
        rows: Mapping[str, Sequence[str]] = {
            "plan": ("plan", str(fleet)),
            "plan --from": ("plan", str(fleet), "--from", str(fleet), "--dry-run"),
            "plan --check": ("plan", str(fleet), "--check", str(trace)),
            "explain": ("explain", str(fleet)),
            "frontier": ("frontier", str(fleet), "--json"),
            "calendar": ("calendar", str(fleet), str(trace)),
            "simulate": ("simulate", str(fleet)),
            "profile": ("profile", str(idle), "--fresh"),
            "pipeline plan": ("pipeline", "plan", str(profile), "--workers", "8,8", "--bandwidth", "1e10,1e9"),
            "bench": ("bench", str(digits)),
            "bench --saturate": ("bench", str(digits), "--saturate"),
            "deploy": ("deploy", str(digits), "--stale", "--kubeconfig", str(kubeconfig)),
            "status": ("status", str(digits), "--kubeconfig", str(kubeconfig)),
            "infer": ("infer", str(digits), "--rows", *inputs),
        }
        short: Mapping[str, Sequence[str]] = {
            "validate": ("validate", str(digits)),
            "diff": ("diff", str(fleet), str(digits)),
            "report": ("report", str(digits)),
            "cost": ("cost", str(digits)),
        }
        served: Mapping[str, Sequence[str]] = {
            "up": ("up", str(idle), "--stale"),
            "top": ("top", str(digits)),
        }
        trained: Mapping[str, Sequence[str]] = {
            "train": ("train", str(training)),
            "train, 2 devices": ("train", str(training), "--set", "devices=2"),
        }
        yield [
            *(Interrupted(row, arguments) for row, arguments in rows.items()),
            *(Interrupted(row, arguments, SHORT) for row, arguments in short.items()),
            *(Interrupted(row, arguments, statuses=(0, 130)) for row, arguments in served.items()),
            *(Interrupted(row, arguments, (MIDDLE, LATE, 2 * LATE)) for row, arguments in trained.items()),
        ]


def _layers() -> Iterator[str]:
    for number in range(LAYERS):
        times = f"forward_compute_time={1 + number % 7}, backward_compute_time={2 + number % 5}"
        yield f"{number} -- L{number} -- {times}, activation_size={1e6 + number}, parameter_size={4e6 + number}"
    yield from (f"\t{number} -- {number + 1}" for number in range(LAYERS - 1))


@contextmanager
def _served(project: Path) -> Iterator[None]:
    jellybean("up", str(project), "--detach", "--stale")
    try:
        yield
    finally:
        with suppress(subprocess.CalledProcessError):
            jellybean("down", str(project))


KUBERNETES = """\
kind: Kubernetes
images: {agent: registry.example/jellybean-agent:1, gateway: registry.example/jellybean-gateway:1}
models: {url: https://models.example/digits}
"""
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: silent, cluster: {server: "http://127.0.0.1:PORT"}}]
users: [{name: nobody, user: {token: none}}]
contexts: [{name: silent, context: {cluster: silent, user: nobody, namespace: default}}]
current-context: silent
"""


@contextmanager
def _silent_server(folder: Path) -> Iterator[Path]:
    """A kubeconfig of a server that accepts connections, and answers none."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        path = folder / "silent-kubeconfig"
        path.write_text(KUBECONFIG.replace("PORT", str(server.getsockname()[1])), encoding="utf-8")
        yield path
