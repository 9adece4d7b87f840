from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("index", "count")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    index: int
    count: int
    def __init__(self, index: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("worker", "operator", "reason", "status")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    operator: str
    reason: str
    status: int
    def __init__(self, worker: _Optional[str] = ..., operator: _Optional[str] = ..., reason: _Optional[str] = ..., status: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("request_id", "route", "upstream", "downstream", "path", "tensor", "failure", "plan", "left_s", "trace")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    DOWNSTREAM_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    route: int
    upstream: str
    downstream: str
    path: _containers.RepeatedCompositeFieldContainer[Position]
    tensor: Tensor
    failure: Failure
    plan: str
    left_s: float
    trace: Trace
    def __init__(self, request_id: _Optional[str] = ..., route: _Optional[int] = ..., upstream: _Optional[str] = ..., downstream: _Optional[str] = ..., path: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., plan: _Optional[str] = ..., left_s: _Optional[float] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("parent", "state", "request_id", "sent_unix_ns")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    parent: str
    state: str
    request_id: str
    sent_unix_ns: int
    def __init__(self, parent: _Optional[str] = ..., state: _Optional[str] = ..., request_id: _Optional[str] = ..., sent_unix_ns: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("messages", "draining")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    messages: int
    draining: bool
    def __init__(self, messages: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AgentStatus(_message.Message):
    __slots__ = ("worker", "plan", "state", "requests_in_hand", "completed", "busy_s", "signatures", "uptime_s", "runs", "late_s", "expired", "protocol", "device")
    class CompletedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class BusySEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SignaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Signature
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Signature, _Mapping]] = ...) -> None: ...
    class RunsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LateSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_HAND_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    LATE_S_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    plan: str
    state: str
    requests_in_hand: int
    completed: _containers.ScalarMap[str, int]
    busy_s: _containers.ScalarMap[str, float]
    signatures: _containers.MessageMap[str, Signature]
    uptime_s: float
    runs: _containers.ScalarMap[str, int]
    late_s: _containers.ScalarMap[str, float]
    expired: int
    protocol: int
    device: str
    def __init__(self, worker: _Optional[str] = ..., plan: _Optional[str] = ..., state: _Optional[str] = ..., requests_in_hand: _Optional[int] = ..., completed: _Optional[_Mapping[str, int]] = ..., busy_s: _Optional[_Mapping[str, float]] = ..., signatures: _Optional[_Mapping[str, Signature]] = ..., uptime_s: _Optional[float] = ..., runs: _Optional[_Mapping[str, int]] = ..., late_s: _Optional[_Mapping[str, float]] = ..., expired: _Optional[int] = ..., protocol: _Optional[int] = ..., device: _Optional[str] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("dtype", "shape")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Signature(_message.Message):
    __slots__ = ("inputs", "outputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TensorSpec
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TensorSpec, _Mapping]] = ...) -> None: ...
    class OutputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TensorSpec
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TensorSpec, _Mapping]] = ...) -> None: ...
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.MessageMap[str, TensorSpec]
    outputs: _containers.MessageMap[str, TensorSpec]
    def __init__(self, inputs: _Optional[_Mapping[str, TensorSpec]] = ..., outputs: _Optional[_Mapping[str, TensorSpec]] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MetricsResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    def __init__(self, text: _Optional[bytes] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_s",)
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    def __init__(self, timeout_s: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("left",)
    LEFT_FIELD_NUMBER: _ClassVar[int]
    left: int
    def __init__(self, left: _Optional[int] = ...) -> None: ...
