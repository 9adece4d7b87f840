"""The command `jellybean-agent`: its options, and one worker of a plan as a process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

from jellybean_agent.enrolment.join import join, keep_renewed, wait_for_new_plan
from jellybean_agent.errors import AgentError, ModelError, PlanViewError, describe_error
from jellybean_agent.execution.model_process import RUN_LIMIT_S
from jellybean_agent.execution.process_pool import ModelProcessPool
from jellybean_agent.execution.python_code import (
    ALLOW_PYTHON_FLAG,
    BUILTIN_STEPS_MODULE,
    parse_allow_list,
    step_folders,
)
from jellybean_agent.process.model_trial import ModelTrial
from jellybean_agent.process.server import DEFAULT_DRAIN_S, Options, serve, termination_event
from jellybean_agent.system.addresses import EVERY_ADDRESS, parse_address
from jellybean_agent.telemetry.logs import add_log_options, configure_logging
from jellybean_agent.telemetry.printable import printable
from jellybean_agent.transport.channels import CONNECTION_LIFETIME_S

LOG = logging.getLogger("jellybean.agent")
_EXAMPLE = """example:
  jellybean-agent --plan run/plan.json --worker edge-1 --root digits --listen unix:/tmp/run/edge-1.sock \\
                  --peers run/peers.json

peers.json names every process of the run; the gateway has the empty name:
  {"": "unix:/tmp/run/gateway.sock", "edge-1": "unix:/tmp/run/edge-1.sock", "cloud-1": "cloud.example:7001"}

an agent that joins a gateway downloads certificate, plan and models; later starts need no token:
  jellybean-agent --join gateway.example:7002 --token-file token --state /var/lib/jellybean-agent
"""
_NEEDED = ("plan", "worker", "listen", "peers")


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent. Exit code: 0 after a drain, 2 when the plan, a model or an address is invalid, else 1."""
    parser = _parser()
    options = vars(parser.parse_args(argv))
    joining = {name: options.pop(name) for name in ("join", "token", "token_file", "state", "plan_every_s")}
    is_new = False
    missing = [f"--{name}" for name in _NEEDED if options[name] is None]
    if joining["join"] is None and missing:
        parser.error(f"the following arguments are required: {', '.join(missing)} (or --join)")
    name = options["worker"] or "jellybean-agent"
    log_format = configure_logging(name, options.pop("log_format"), options.pop("log_level"))
    try:
        options["allow_python"] = parse_allow_list(options["allow_python"])
        folders = [str(folder.resolve()) for folder in options.pop("python_path")]
        sys.path += step_folders(options["allow_python"], folders)  # model processes are forked later
        with contextlib.ExitStack() as stack:
            pool: ModelProcessPool | None = None
            if not options["in_process"]:  # before gRPC starts, as no process may be forked afterwards
                pool = stack.enter_context(ModelProcessPool((options["model_memory_mib"] or 0) * 2**20 or None))
            options["emulate"] = not options.pop("no_emulation")
            if joining["join"] is None:
                asyncio.run(serve(Options(**options), pool))
            else:
                is_new = asyncio.run(_joined(joining, options, pool))
    except AgentError as error:
        _tell_end(name, str(error), log_format)
        return 2 if isinstance(error, PlanViewError | ModelError) else 1
    except OSError as error:
        _tell_end(name, describe_error(error, name=True), log_format)
        return 1
    if is_new:  # a fresh start with the new plan; the process id stays, for its supervisor
        os.execv(sys.executable, [sys.executable, "-P", "-m", "jellybean_agent", *(argv or sys.argv[1:])])
    return 0


def _tell_end(name: str, reason: str, log_format: str) -> None:
    """Say why the agent ends: in logs for machines each line is a JSON object, this one too."""
    if log_format == "json":
        LOG.error("%s", reason)
    else:
        print(f"{name}: {printable(reason)}", file=sys.stderr)


async def _joined(joining: dict[str, object], options: dict[str, object], pool: ModelProcessPool | None) -> bool:
    """Enrol at a gateway, then serve its plan, and keep the certificate renewed.

    True if serving ended because the gateway has a new plan. If a model of the plan cannot be loaded, the gateway is
    told, and the agent waits for another plan: a box that ended would not return to the plan before.
    """
    token = joining["token"]
    file = Path(str(joining["token_file"] or ""))
    if token is None and file.is_file():  # a missing file is no error: the token may have been removed after its use
        token = file.read_text(encoding="utf-8")
    joined = await join(str(joining["join"]), None if token is None else str(token), Path(str(joining["state"])))
    own_address = json.loads((joined.folder / "peers.json").read_bytes())[joined.worker.name]
    files = {"plan": joined.folder / "plan.json", "peers": joined.folder / "peers.json", "root": joined.models}
    listen = options["listen"] or f"{EVERY_ADDRESS}:{parse_address(str(own_address))[1]}"
    overrides = {"worker": joined.worker.name, "tls": joined.tls, "listen": listen, "emulate": False}
    overrides["counters"] = options["counters"] or joined.folder / "counters"
    allow_python = cast(frozenset[str], options["allow_python"])
    every_s = float(str(joining["plan_every_s"]))
    stop = termination_event()
    renewing = _start(keep_renewed(joined.folder))
    trial = ModelTrial(pool, joined.folder, cast(float, options["max_run_s"]))
    trial.remove_files()
    following = _start(wait_for_new_plan(joined, every_s, trial, allow_python))
    try:
        await serve(Options(**{**options, **files, **overrides}), pool, stop)  # type: ignore[arg-type]
    except ModelError as error:
        if not stop.is_set():
            LOG.error("plan %s cannot be served here, waiting for another: %s", joined.view.hash[:12], error)
            await _cancelled(following)  # it may be trying models
            following = _start(wait_for_new_plan(joined, every_s, trial, allow_python, problem=str(error)))
            await stop.wait()
    finally:
        is_new = following.done() and following.exception() is None
        await _cancelled(renewing)
        await _cancelled(following)
    return is_new


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task; returns once it has ended. Its exception is raised here, if it has failed."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _start(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task whose end starts a drain."""
    task = asyncio.create_task(coroutine)
    task.add_done_callback(_drain_unless_cancelled)
    return task


def _drain_unless_cancelled(task: asyncio.Task[None]) -> None:
    """Start a drain unless `task` was cancelled: there is a new plan, or the certificate could not be renewed."""
    if not task.cancelled():
        os.kill(os.getpid(), signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jellybean-agent",
        description="Serve one worker of a JellyBean plan until SIGTERM, then finish the requests in flight.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--plan", type=Path, help="the plan document (JSON)")
    parser.add_argument("--worker", help="the name of this worker in the plan")
    parser.add_argument("--root", type=Path, default=Path(), help="the folder that model paths start from")
    parser.add_argument("--listen", help="unix:/path (in a private folder) or HOST:PORT")
    parser.add_argument("--peers", type=Path, help="JSON: worker name -> address")
    parser.add_argument("--join", metavar="GATEWAY", help="HOST:PORT where a gateway enrols agents")
    parser.add_argument("--token", help="with --join, the first time (better --token-file: others see command lines)")
    parser.add_argument("--token-file", type=Path, help="a file that holds the token")
    parser.add_argument(
        "--state", type=Path, default=Path("jellybean-agent"), help="with --join: the folder for its state"
    )
    parser.add_argument(
        "--plan-every-s", type=float, default=10.0, help="with --join: longest wait for a new plan before asking again"
    )
    parser.add_argument("--links", type=Path, help="state of the emulated links (default: beside the peers file)")
    parser.add_argument("--no-emulation", action="store_true", help="emulate no links and no slower devices")
    parser.add_argument("--tls", type=Path, help="for TCP: folder with tls.crt, tls.key, ca.crt; read again on change")
    parser.add_argument("--insecure", action="store_true", help="TCP without TLS, on the loopback interface only")
    parser.add_argument(
        "--renew-s", type=float, default=CONNECTION_LIFETIME_S, help="seconds after which connections are renewed"
    )
    parser.add_argument("--metrics-host", default="127.0.0.1", help="where Prometheus metrics are served")
    parser.add_argument("--metrics-port", type=int, default=0, help="port of Prometheus metrics (0: off)")
    parser.add_argument("--counters", type=Path, help="a file that keeps its counters over restarts of the process")
    parser.add_argument("--health-port", type=int, default=0, help="grpc.health.v1 without TLS, for probes (0: off)")
    parser.add_argument("--in-process", action="store_true", help="run models in the agent's process: a crash ends it")
    parser.add_argument("--max-run-s", type=float, default=RUN_LIMIT_S, help="seconds after which a run is ended")
    parser.add_argument("--model-memory-mib", type=int, help="memory limit of models (default: half of all)")
    parser.add_argument("--drain-s", type=float, default=DEFAULT_DRAIN_S, help="longest time of a drain, in seconds")
    parser.add_argument(
        ALLOW_PYTHON_FLAG,
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help=f"a Python step that plans may run here, besides {BUILTIN_STEPS_MODULE}; may be given several times",
    )
    parser.add_argument(
        "--python-path",
        action="append",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="a folder with modules of Python steps, searched after installed ones; may be given several times",
    )
    add_log_options(parser)
    return parser
