"""The command line of the gateway as a process."""

from __future__ import annotations

import argparse
from pathlib import Path

from jellybean.serving.gateway.gateway import MAX_IN_FLIGHT, TIMEOUT_S
from jellybean.serving.gateway.requests.hedging import Hedge
from jellybean_agent import (
    CONNECTION_LIFETIME_S,
    DEFAULT_DRAIN_S,
    PlanViewError,
    add_log_options,
    stays_inside_folder,
)


def _of_workflow(text: str) -> tuple[str, str]:
    """Workflow and value of `WORKFLOW=VALUE`; the workflow of a value alone is empty."""
    name, _, value = text.rpartition("=")
    return name, value


def _project_file(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not path or not stays_inside_folder(name):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE, with a name inside the project's folder")
    return name, Path(path)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _hedge(text: str) -> Hedge:
    try:
        return Hedge(text)
    except PlanViewError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def gateway_parser() -> argparse.ArgumentParser:
    """The options of the gateway's process."""
    parser = argparse.ArgumentParser(prog="jellybean-gateway", description="The gateway of a running plan.")
    parser.add_argument("--plan", type=Path, required=True, help="plan document (JSON)")
    parser.add_argument("--peers", type=Path, required=True, help="addresses of gateway and workers (JSON)")
    parser.add_argument("--links", type=Path, required=True, help="file with the state of the emulated links")
    parser.add_argument("--replaced", type=Path, help="folder that keeps a replacement of the plan for the next start")
    parser.add_argument("--address-file", type=Path, help="file to write the clients' address to")
    parser.add_argument("--listen", help="instead of the gateway's address in the peers file, e.g. 0.0.0.0:7000")
    parser.add_argument(
        "--reply-address",
        help="of one of several gateways of the plan: where workers answer it, HOST:PORT or unix:PATH",
    )
    parser.add_argument("--tls", type=Path, help="for TCP: folder with tls.crt, tls.key, ca.crt; read again on change")
    parser.add_argument("--insecure", action="store_true", help="TCP without TLS, on the loopback interface only")
    parser.add_argument(
        "--renew-s", type=float, default=CONNECTION_LIFETIME_S, help="lifetime of a TLS connection in seconds"
    )
    parser.add_argument("--host", default="127.0.0.1", help="host of --port and --http-port")
    parser.add_argument("--port", type=int, help="for clients, besides the gateway's own address; 0: any free one")
    parser.add_argument("--run", type=Path, help="project whose run this is; Stop ends all of it")
    parser.add_argument("--owner-socket", help="unix:PATH for the owner's commands, besides, in a private folder")
    parser.add_argument("--http-port", type=int, default=0, help="Open Inference Protocol over HTTP; 0: off")
    parser.add_argument("--health-port", type=int, default=0, help="grpc.health.v1 without TLS, for probes; 0: off")
    parser.add_argument("--metrics-port", type=int, default=0, help="Prometheus metrics, without TLS; 0: off")
    parser.add_argument("--metrics-host", default="127.0.0.1", help="host of --metrics-port")
    parser.add_argument("--worker-metrics", action="store_true", help="serve the workers' metrics there too")
    parser.add_argument("--spool", type=Path, help="file for requests of sources with `deliver: eventually`")
    parser.add_argument("--ledger", default="", help="database of the ledger, a URL or a file; empty: none is written")
    parser.add_argument("--live", type=Path, help="file of the counters since its last interval; needs --ledger")
    parser.add_argument("--ledger-run", default="", help="which start of serving this is; between two nothing costs")
    text = "name of the plan's gateways, if there are several: one at a time bills the workers, which they share"
    parser.add_argument("--ledger-deployment", default="", help=text)
    text = "of labels that come after the answers; WORKFLOW=METRIC: of one of several workflows"
    parser.add_argument("--metric", metavar="METRIC", type=_of_workflow, action="append", default=[], help=text)
    text = "operator whose output they are for, by default the only one; WORKFLOW=OPERATOR: of one of several workflows"
    parser.add_argument("--labelled", metavar="OPERATOR", type=_of_workflow, action="append", default=[], help=text)
    parser.add_argument(
        "--project-file",
        metavar="NAME=FILE",
        type=_project_file,
        action="append",
        default=[],
        help="a document or held-out data of the project, for admins who measure from elsewhere; may be repeated",
    )
    parser.add_argument("--report-store", type=Path, help="what was planned and measured of the project, for admins")
    parser.add_argument("--enrol", help="HOST:PORT where boxes with a token join; needs --tls, --ca and --tokens")
    parser.add_argument("--ca", type=Path, help="folder of the authority that signs their certificates")
    parser.add_argument("--tokens", type=Path, help="folder of their tokens (`jellybean token`)")
    parser.add_argument("--root", type=Path, default=Path(), help="folder of the model files, for boxes that enrol")
    parser.add_argument("--certificate-hours", type=float, default=168.0, help="lifetime of their certificates")
    parser.add_argument("--no-emulation", action="store_true", help="do not emulate the plan's links: they are real")
    parser.add_argument(
        "--hedge-after",
        metavar="TIME",
        type=_hedge,
        help="send slow requests over a second route, after seconds (0.3) or a quantile of latencies (95%%)",
    )
    text = "most requests in flight at all gateways of the plan"
    parser.add_argument("--max-in-hand", type=int, default=MAX_IN_FLIGHT, help=text)
    text = "number of gateways of the plan, of which this one takes its part of --max-in-hand"
    parser.add_argument("--gateways", type=_count, default=1, help=text)
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S, help="longest time limit of a request")
    parser.add_argument(
        "--drain-s", type=float, default=DEFAULT_DRAIN_S, help="longest wait for requests in flight at the end"
    )
    add_log_options(parser)
    return parser
