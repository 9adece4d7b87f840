"""The agent that runs on a worker. Other packages import from here, never from a subpackage.

Names are loaded on first use (PEP 562): a process pays only for the parts that it uses.
"""

from __future__ import annotations

import os

from jellybean_protos.lazy_surface import lazy_surface

# Before onnxruntime is imported: otherwise its import starts a thread that looks up a telemetry host, writes an ID to
# the home folder, and runs while the process pool forks.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_NAMES: dict[str, tuple[str, ...]] = {  # by module
    "brain.brain": ("Brain",),
    "brain.run_queue": (
        "BatchPolicy",
        "FAIR_QUEUEING_FROM",
    ),
    "brain.audit_view": (
        "AUDIT_PREFIX",
        "AuditView",
    ),
    "brain.wiring": ("OperatorWiring",),
    "brain.messages": (
        "RequestFailed",
        "GATEWAY",
        "Instruction",
        "EdgeMessage",
        "FanOutPath",
        "RunOperator",
        "SendMessage",
        "StreamPosition",
    ),
    "brain.plan_figures": (
        "PlanFigures",
        "planned_rate_per_s",
    ),
    "brain.plan_reading": (
        "plan_view",
        "read_plan",
    ),
    "brain.plan_view": (
        "PlanView",
        "WorkerView",
    ),
    "brain.route_table": ("RouteTable",),
    "brain.sites": (
        "SiteRoutes",
        "Sites",
    ),
    "brain.workflow_views": (
        "plan_part",
        "workflow_views",
    ),
    "enrolment.join_token": (
        "TOKEN_SECRET_BYTES",
        "JoinToken",
    ),
    "errors": (
        "AgentError",
        "CountersError",
        "InvalidInputError",
        "ModelError",
        "PermanentError",
        "PlanViewError",
        "StatusError",
        "describe_error",
        "status_from_number",
        "status_of",
    ),
    "execution.executor": ("Executor",),
    "execution.model_files": (
        "FileHash",
        "data_names",
        "data_path",
        "file_sha256",
        "hash_model",
    ),
    "execution.providers": (
        "ORT_ERRORS",
        "try_device",
    ),
    "execution.session": ("OperatorCode",),
    "execution.python_code": (
        "ALLOW_PYTHON_FLAG",
        "BUILTIN_STEPS_MODULE",
        "ModuleSource",
        "PythonStep",
        "parse_allow_list",
        "find_module_source",
        "python_refusal",
        "step_folders",
        "step_signature",
        "split_function_name",
    ),
    "inference.envelopes": (
        "RequestEnvelope",
        "shortest_timeout_s",
    ),
    "inference.fast": ("FastInfer",),
    "inference.models": (
        "ServedModel",
        "ModelCounters",
        "Sequence",
    ),
    "inference.service": (
        "MODEL_INFER_METHOD",
        "InferenceService",
        "INFERENCE_SERVICE_NAME",
        "log_refusal",
    ),
    "inference.tensors": (
        "DTYPE_BY_DATATYPE",
        "dtype_of_datatype",
        "tensor_from_values",
    ),
    "measuring.memory_growth": ("ModelMemory", "memory_growth"),
    "measuring.sample_file": ("sample_file",),
    "measuring.neighbours": ("busy_neighbours", "neighbour_count"),
    "measuring.timed_runs": (
        "PAUSE_S",
        "WARM_UP_BELOW_S",
        "WARM_UP_RUNS",
        "Block",
        "batched",
        "timed_runs",
    ),
    "process.health": (
        "serve_health",
        "set_health",
    ),
    "process.metrics": (
        "BYTES_PER_GIB",
        "certificate_metrics",
        "link_byte_metrics",
        "serve_metrics",
        "metrics_text",
    ),
    "process.peer_addresses": ("read_peer_addresses",),
    "process.server": (
        "DEFAULT_DRAIN_S",
        "add_reflection",
        "running_task",
        "termination_event",
    ),
    "rpc.calls": ("RpcCall",),
    "rpc.server": ("RpcServer",),
    "rpc.unix_socket_client": (
        "UnixSocketClient",
        "UnixSocketRpcUnsupportedError",
    ),
    "security.certificates": (
        "CA_FILE",
        "CERTIFICATE_FILE",
        "CertificateFolder",
        "Credentials",
        "PRIVATE_KEY_FILE",
        "read_credentials",
    ),
    "security.renewal": ("ExpiredCertificateError", "renewal_advice", "renewal_command", "utc_minute"),
    "security.connection_fault": ("ConnectionFault", "connection_fault"),
    "security.expiry": ("EXPIRING_SHARE", "watch_expiry"),
    "security.identity": (
        "Identity",
        "OpenPolicy",
        "Policy",
        "Role",
        "caller_uri",
        "current_caller",
        "is_tls_name",
        "parse_identity",
        "remember_caller",
        "tls_auth_context",
    ),
    "security.tls_context": ("TlsConnection",),
    "system.device": (
        "CPU",
        "DEVICE_NAMES",
        "Device",
    ),
    "system.driver": ("driver_of",),
    "system.machine": ("Machine", "installed_version", "this_machine"),
    "system.onnxruntime_package": ("onnxruntime_package",),
    "system.share": ("SHARE_KINDS", "Share"),
    "system.malloc": ("keep_freed_memory",),
    "system.protocol_version": (
        "protocol_metadata",
        "protocol_mismatch",
    ),
    "system.private_files": (
        "stays_inside_folder",
        "write_private_file",
    ),
    "telemetry.live_counters": ("LiveCounters",),
    "telemetry.logs": (
        "LOG_VARIABLES",
        "add_log_options",
        "configure_logging",
        "log_fields",
    ),
    "telemetry.spans": (
        "CALL_TRACE_HEADERS",
        "TRACE_HEADER_NAMES",
        "SpanFactory",
        "store_trace_headers",
        "span_context",
        "end_span_with_error",
        "parent_context_of_call",
        "message_trace",
        "trace_id_of",
    ),
    "telemetry.tracing": ("make_span_factory",),
    "tensors.ports": (
        "PortNames",
        "TensorPort",
    ),
    "tensors.stacking": (
        "OperatorInput",
        "RunInput",
        "arrays_of",
        "stack_requests",
    ),
    "tensors.tensors": (
        "Array",
        "MAX_MESSAGE_BYTES",
        "MAX_TENSOR_RANK",
        "RawTensor",
        "check_answer_size",
        "check_tensor_names",
        "checked_shape",
        "decode_tensor",
        "encode_tensor",
        "tensor_mismatch",
    ),
    "tensors.dtypes": (
        "TEXT_NOT_SERVED",
        "WIRE_DTYPES",
        "is_text",
        "is_zipmap",
        "no_served_output",
        "unserved_reason",
    ),
    "transport.channels": (
        "CONNECTION_LIFETIME_S",
        "Transport",
        "caller_identity",
        "check_caller",
        "make_server",
        "make_transport",
    ),
    "transport.inboxes": (
        "Inboxes",
        "agent_service_handler",
    ),
    "transport.message_wire": ("read_fan_out_path",),
    "transport.peers": (
        "Peer",
        "PeerSettings",
    ),
    "transport.reply_address": ("ReplyAddress",),
    "transport.streams": ("DELIVER_METHOD",),
    "worker.emulated_links": ("EmulatedLinks",),
    "worker.stream_states": (
        "initial_state",
        "state_inputs",
    ),
}

__all__, __getattr__ = lazy_surface(__name__, _NAMES)  # the stub beside this file has the same names
