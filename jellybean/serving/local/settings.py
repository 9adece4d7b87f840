"""How a plan is served on this machine: ports, TLS, limits and what its agents may run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jellybean.serving.errors import LaunchError, SettingsError
from jellybean.serving.gateway.gateway import MAX_IN_FLIGHT, TIMEOUT_S
from jellybean_protos.extras import install_command

START_S = 120.0
DRAIN_S = 30.0
NO_LEDGER = "none"
CERTIFICATE_HOURS = 168.0  # validity of certificates, unless another one is given: a week

Progress = Callable[[float, float, str], None]  # done, total, label


def no_progress(_done: float, _total: float, _label: str) -> None:
    """Reports no progress."""


@dataclass(frozen=True, slots=True)
class ServedProject:
    """What the gateway needs to know of its project.

    `metrics`: workflow -> by which labels that come later judge its answers, of the operator `labelled` (by default of
    the only one that answers); the name of a plan's only workflow is empty. `files`: path in the project -> file, of
    documents and held-out data, with which an admin elsewhere measures. `report_store`: file with what was planned and
    measured; None: there is none.
    """

    metrics: Mapping[str, str] = field(default_factory=dict)
    labelled: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    report_store: Path | None = None

    def gateway_arguments(self) -> list[str]:
        """The settings as arguments of the gateway's command line."""
        own = [
            f"--{option}={workflow}={value}" if workflow else f"--{option}={value}"
            for option, values in (("metric", self.metrics), ("labelled", self.labelled))
            for workflow, value in values.items()
        ]
        own += [f"--report-store={self.report_store}"] if self.report_store is not None else []
        return own + [f"--project-file={path}={file}" for path, file in self.files.items()]


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """Settings of a run. Without ports only this user's processes reach the gateway, over its Unix socket.

    `port`: TCP port for clients (0: any free one), which needs the gateway's certificate in the folder `tls`, or
    `insecure`: open to every user of this machine. `http_port`: Open Inference Protocol over HTTP (0: off), likewise.
    `metrics_port`: the gateway's metrics on the loopback (0: off). `hedge_after`: as `Hedge` reads it; empty: never.
    `allow_python`: functions that agents may run besides their own steps. `ledger`: URL of the ledger's database;
    empty: the project's own file, `none`: no ledger is written. `project`: what the gateway needs to know
    of it.
    """

    port: int | None = None
    http_port: int = 0
    tls: Path | None = None
    insecure: bool = False
    metrics_port: int = 0
    hedge_after: str = ""
    max_in_flight: int = MAX_IN_FLIGHT
    request_timeout_s: float = TIMEOUT_S
    start_timeout_s: float = START_S
    allow_python: frozenset[str] = frozenset()
    ledger: str = ""
    project: ServedProject = ServedProject()

    def check(self) -> None:
        """SettingsError when ports would be open to everybody unasked, or settings exclude each other.

        LaunchError when HTTP is not installed.
        """
        if (self.port is not None or self.http_port) and self.tls is None and not self.insecure:
            raise SettingsError(
                "a port is open to every user of this machine: --tls FOLDER (made by `jellybean certs`), "
                "or --insecure where that is meant"
            )
        if self.tls is not None and self.insecure:
            raise SettingsError("--tls and --insecure exclude each other: give one of them")
        _require_distinct(self.port, self.http_port, self.metrics_port)
        _require_http(self.http_port)

    def gateway_arguments(self) -> list[str]:
        """The settings as arguments of the gateway's command line."""
        arguments = [f"--http-port={self.http_port}", f"--metrics-port={self.metrics_port}", "--worker-metrics"]
        arguments += [f"--hedge-after={self.hedge_after}"] if self.hedge_after else []
        arguments += ["--insecure"] if self.insecure else []
        arguments += [] if self.port is None else [f"--port={self.port}"]
        arguments += [] if self.tls is None else [f"--tls={self.tls.resolve()}"]
        arguments += self.project.gateway_arguments()
        return [*arguments, f"--max-in-hand={self.max_in_flight}", f"--timeout-s={self.request_timeout_s}"]


@dataclass(frozen=True, slots=True)
class JoinedSettings:
    """Settings of a gateway whose workers are on other machines.

    `peers`: file with the addresses of gateway and workers. `state`: the project's state folder, with the certificates.
    `listen`: address for workers (None: the gateway's in `peers`); `enrol`: address where boxes join with a token.
    `certificate_hours`: validity of the certificates of boxes that join. `port`, `http_port`: for clients, on `host`;
    the other settings as of `LaunchSettings`.
    """

    peers: Path
    state: Path
    listen: str | None = None
    enrol: str | None = None
    certificate_hours: float = CERTIFICATE_HOURS
    host: str = "127.0.0.1"
    port: int | None = None
    http_port: int = 0
    metrics_port: int = 0
    hedge_after: str = ""
    start_timeout_s: float = START_S
    ledger: str = ""
    project: ServedProject = ServedProject()

    @property
    def replaced(self) -> Path:
        """Folder of the plan that `apply` had the gateway serve, for its restarts by the keeper."""
        return self.state / "gateway" / "replaced"

    @property
    def tls(self) -> Path:
        """Folder of the gateway's certificate."""
        return gateway_certificate(self.state)

    @property
    def authority(self) -> Path:
        """Folder of the authority that signs the boxes' certificates."""
        return self.state / "certs" / "ca"

    def check(self) -> None:
        """SettingsError when two ports for clients are the same, LaunchError when HTTP is not installed."""
        _require_distinct(self.port, self.http_port)
        _require_http(self.http_port)

    def gateway_arguments(self) -> list[str]:
        """The settings as arguments of the gateway's command line."""
        given: dict[str, object] = {"listen": self.listen, "enrol": self.enrol, "host": self.host, "port": self.port}
        given |= {"certificate-hours": self.certificate_hours}
        given |= {"http-port": self.http_port, "metrics-port": self.metrics_port, "tls": self.tls}
        given |= {"ca": self.authority, "tokens": self.state / "tokens", "root": self.state.parent}
        given |= {"replaced": self.replaced, "hedge-after": self.hedge_after or None}
        return ["--no-emulation", "--worker-metrics", *self.project.gateway_arguments()] + [
            f"--{name}={value}" for name, value in given.items() if value is not None
        ]


def gateway_certificate(state: Path) -> Path:
    """Folder of the gateway's certificate in a project's state folder."""
    return state / "certs" / "gateway"


def _require_distinct(port: int | None, http_port: int, metrics_port: int = 0) -> None:
    """SettingsError when two ports are the same; 0 is none, or a free one."""
    options: dict[int, str] = {}
    for option, number in (("--port", port), ("--http-port", http_port), ("--metrics-port", metrics_port)):
        if number and options.setdefault(number, option) != option:
            raise SettingsError(f"{options[number]} and {option} are both {number}: each needs a port of its own")


def _require_http(port: int) -> None:
    if port and importlib.util.find_spec("aiohttp") is None:
        raise LaunchError(f"HTTP needs aiohttp: {install_command('http')}, or leave HTTP out")
