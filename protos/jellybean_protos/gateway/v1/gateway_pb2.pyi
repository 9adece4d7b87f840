from jellybean_protos.agent.v1 import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlanRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    def __init__(self, plan: _Optional[bytes] = ...) -> None: ...

class InferRequest(_message.Message):
    __slots__ = ("request_id", "inputs", "stream", "workflow")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _agent_pb2.Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_agent_pb2.Tensor, _Mapping]] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    inputs: _containers.MessageMap[str, _agent_pb2.Tensor]
    stream: Stream
    workflow: str
    def __init__(self, request_id: _Optional[str] = ..., inputs: _Optional[_Mapping[str, _agent_pb2.Tensor]] = ..., stream: _Optional[_Union[Stream, _Mapping]] = ..., workflow: _Optional[str] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("id", "begins", "ends", "chunk")
    ID_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    id: str
    begins: bool
    ends: bool
    chunk: int
    def __init__(self, id: _Optional[str] = ..., begins: bool = ..., ends: bool = ..., chunk: _Optional[int] = ...) -> None: ...

class InferResponse(_message.Message):
    __slots__ = ("request_id", "outputs", "kept")
    class OutputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _agent_pb2.Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_agent_pb2.Tensor, _Mapping]] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    outputs: _containers.MessageMap[str, _agent_pb2.Tensor]
    kept: bool
    def __init__(self, request_id: _Optional[str] = ..., outputs: _Optional[_Mapping[str, _agent_pb2.Tensor]] = ..., kept: bool = ...) -> None: ...

class ReplaceRequest(_message.Message):
    __slots__ = ("plan", "peers", "links", "timeout_s")
    class PeersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    peers: _containers.ScalarMap[str, str]
    links: str
    timeout_s: float
    def __init__(self, plan: _Optional[bytes] = ..., peers: _Optional[_Mapping[str, str]] = ..., links: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class ReplaceResponse(_message.Message):
    __slots__ = ("before",)
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    before: str
    def __init__(self, before: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("workflow",)
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    workflow: str
    def __init__(self, workflow: _Optional[str] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("workflow", "plan", "state", "workers", "requests_in_hand", "answered", "failed", "reasons", "refused", "expired", "retried", "waiting", "left_out", "kept", "kept_bytes", "hedged", "workflows")
    class WorkersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ReasonsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_HAND_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEDGED_FIELD_NUMBER: _ClassVar[int]
    WORKFLOWS_FIELD_NUMBER: _ClassVar[int]
    workflow: str
    plan: str
    state: str
    workers: _containers.ScalarMap[str, str]
    requests_in_hand: int
    answered: int
    failed: int
    reasons: _containers.ScalarMap[str, str]
    refused: int
    expired: int
    retried: int
    waiting: int
    left_out: int
    kept: int
    kept_bytes: int
    hedged: int
    workflows: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, workflow: _Optional[str] = ..., plan: _Optional[str] = ..., state: _Optional[str] = ..., workers: _Optional[_Mapping[str, str]] = ..., requests_in_hand: _Optional[int] = ..., answered: _Optional[int] = ..., failed: _Optional[int] = ..., reasons: _Optional[_Mapping[str, str]] = ..., refused: _Optional[int] = ..., expired: _Optional[int] = ..., retried: _Optional[int] = ..., waiting: _Optional[int] = ..., left_out: _Optional[int] = ..., kept: _Optional[int] = ..., kept_bytes: _Optional[int] = ..., hedged: _Optional[int] = ..., workflows: _Optional[_Iterable[str]] = ...) -> None: ...
