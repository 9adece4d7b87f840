"""The agent that runs on a worker. Other packages import from here, never from a room.

Names are loaded on first use (PEP 562): a process pays only for the parts that it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES: dict[str, tuple[str, ...]] = {
    "brain.brain": (
        "Brain",
        "OperatorWiring",
    ),
    "brain.messages": (
        "Failed",
        "GATEWAY",
        "Instruction",
        "Message",
        "Path",
        "Run",
        "Send",
    ),
    "brain.plan_view": (
        "PlanView",
        "WorkerView",
        "plan_view",
        "read_plan",
    ),
    "brain.sites": (
        "SiteRoutes",
        "Sites",
    ),
    "enrolment.join_token": (
        "SECRET_BYTES",
        "Token",
    ),
    "errors": (
        "AgentError",
        "InvalidInputError",
        "ModelError",
        "PermanentError",
        "PlanViewError",
        "StatusError",
        "in_words",
        "status_from_number",
        "status_of",
    ),
    "execution.executor": (
        "Code",
        "Executor",
        "ORT_ERRORS",
    ),
    "execution.python_code": (
        "ALLOW_FLAG",
        "OURS",
        "PythonStep",
        "allow",
        "find_source",
        "refusal",
        "signature_of",
        "split",
    ),
    "inference.envelopes": (
        "Known",
        "limit_s",
    ),
    "inference.fast": ("FastInfer",),
    "inference.models": (
        "Model",
        "ModelFigures",
    ),
    "inference.service": (
        "INFER",
        "InferenceService",
        "SERVICE",
        "log_refusal",
    ),
    "inference.tensors": (
        "DATATYPES",
        "dtype_of",
        "laid_out",
    ),
    "process.health_port": ("serve_health",),
    "process.metrics": (
        "GIB",
        "of_bytes",
        "serve_metrics",
        "text_of",
    ),
    "process.server": (
        "DRAIN_S",
        "read_peers",
        "reflect",
        "stop_event",
        "tell_health",
    ),
    "rpc.calls": ("Call",),
    "rpc.server": ("Server",),
    "rpc.unix_socket_client": (
        "LaneClient",
        "NoLaneError",
    ),
    "security.certificates": (
        "CA",
        "CHAIN",
        "CertificateFolder",
        "KEY",
    ),
    "security.identity": (
        "Identity",
        "Policy",
        "Role",
        "caller_uri",
        "shown",
    ),
    "security.tls_context": ("Handshake",),
    "system": ("versions",),
    "system.malloc": ("keep_freed",),
    "system.private_files": (
        "is_inside",
        "write_private",
    ),
    "telemetry": ("logs",),
    "telemetry.logs": (
        "VARIABLES",
        "about",
    ),
    "telemetry.spans": (
        "CARRIER",
        "HEADERS",
        "Spans",
        "TakesTraces",
        "context_of",
        "fail",
        "parent_of_call",
        "sent",
        "trace_id_of",
    ),
    "telemetry.tracing": ("spans_of",),
    "tensors": ("ports",),
    "tensors.ports": ("Port",),
    "tensors.stacking": (
        "Input",
        "stacked",
    ),
    "tensors.tensors": (
        "Array",
        "DTYPES",
        "MAX_MESSAGE_BYTES",
        "MAX_RANK",
        "RawTensor",
        "check_names",
        "checked_shape",
        "decode",
        "encode",
        "mismatch",
    ),
    "transport.channels": (
        "AnyServer",
        "RENEW_S",
        "Transport",
        "caller_identity",
        "check_caller",
        "make_transport",
        "server_credentials",
    ),
    "transport.inboxes": (
        "Inboxes",
        "deliver_handler",
    ),
    "transport.message_wire": ("read_path",),
    "transport.peers": ("Peer",),
    "transport.streams": ("DELIVER",),
    "worker.emulated_links": ("EmulatedLinks",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (the stub beside this file lists the same names for type checkers)


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
