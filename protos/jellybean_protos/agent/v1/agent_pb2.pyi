from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamState(_message.Message):
    __slots__ = ("operator", "stream", "after", "tensors", "plan")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    operator: str
    stream: str
    after: str
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    plan: str
    def __init__(self, operator: _Optional[str] = ..., stream: _Optional[str] = ..., after: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., plan: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("request_id", "route", "upstream", "downstream", "path", "tensor", "failure", "plan", "left_s", "stream", "after", "trace")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    DOWNSTREAM_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
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
    stream: str
    after: str
    trace: Trace
    def __init__(self, request_id: _Optional[str] = ..., route: _Optional[int] = ..., upstream: _Optional[str] = ..., downstream: _Optional[str] = ..., path: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., plan: _Optional[str] = ..., left_s: _Optional[float] = ..., stream: _Optional[str] = ..., after: _Optional[str] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ...) -> None: ...

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
    def __init__(self, messages: _Optional[int] = ..., draining: bool = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AgentStatus(_message.Message):
    __slots__ = ("worker", "plan", "state", "requests_in_hand", "completed", "busy_s", "signatures", "uptime_s", "runs", "late_s", "expired", "protocol", "device", "machine", "several_gateways")
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
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    SEVERAL_GATEWAYS_FIELD_NUMBER: _ClassVar[int]
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
    machine: Machine
    several_gateways: bool
    def __init__(self, worker: _Optional[str] = ..., plan: _Optional[str] = ..., state: _Optional[str] = ..., requests_in_hand: _Optional[int] = ..., completed: _Optional[_Mapping[str, int]] = ..., busy_s: _Optional[_Mapping[str, float]] = ..., signatures: _Optional[_Mapping[str, Signature]] = ..., uptime_s: _Optional[float] = ..., runs: _Optional[_Mapping[str, int]] = ..., late_s: _Optional[_Mapping[str, float]] = ..., expired: _Optional[int] = ..., protocol: _Optional[int] = ..., device: _Optional[str] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ..., several_gateways: bool = ...) -> None: ...

class Machine(_message.Message):
    __slots__ = ("cpu", "cores", "system", "onnxruntime", "threads", "jellybean", "driver")
    CPU_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    ONNXRUNTIME_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    JELLYBEAN_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    cpu: str
    cores: int
    system: str
    onnxruntime: str
    threads: int
    jellybean: str
    driver: str
    def __init__(self, cpu: _Optional[str] = ..., cores: _Optional[int] = ..., system: _Optional[str] = ..., onnxruntime: _Optional[str] = ..., threads: _Optional[int] = ..., jellybean: _Optional[str] = ..., driver: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("workflow",)
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    workflow: str
    def __init__(self, workflow: _Optional[str] = ...) -> None: ...

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

class MeasureRequest(_message.Message):
    __slots__ = ("subject", "file")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    subject: Subject
    file: FilePart
    def __init__(self, subject: _Optional[_Union[Subject, _Mapping]] = ..., file: _Optional[_Union[FilePart, _Mapping]] = ...) -> None: ...

class Subject(_message.Message):
    __slots__ = ("name", "sha256", "files", "function", "arguments", "inputs", "device", "device_options", "sample", "points", "memory", "force")
    class DeviceOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: str
    files: _containers.RepeatedCompositeFieldContainer[ContentFile]
    function: str
    arguments: str
    inputs: _containers.RepeatedCompositeFieldContainer[InputEdge]
    device: str
    device_options: _containers.ScalarMap[str, str]
    sample: ContentFile
    points: _containers.RepeatedCompositeFieldContainer[TimedPoint]
    memory: bool
    force: bool
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[str] = ..., files: _Optional[_Iterable[_Union[ContentFile, _Mapping]]] = ..., function: _Optional[str] = ..., arguments: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[InputEdge, _Mapping]]] = ..., device: _Optional[str] = ..., device_options: _Optional[_Mapping[str, str]] = ..., sample: _Optional[_Union[ContentFile, _Mapping]] = ..., points: _Optional[_Iterable[_Union[TimedPoint, _Mapping]]] = ..., memory: bool = ..., force: bool = ...) -> None: ...

class ContentFile(_message.Message):
    __slots__ = ("name", "sha256", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: str
    size: int
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class InputEdge(_message.Message):
    __slots__ = ("upstream", "port")
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    upstream: str
    port: str
    def __init__(self, upstream: _Optional[str] = ..., port: _Optional[str] = ...) -> None: ...

class TimedPoint(_message.Message):
    __slots__ = ("batch", "seconds", "blocks")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    batch: int
    seconds: float
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, batch: _Optional[int] = ..., seconds: _Optional[float] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class FilePart(_message.Message):
    __slots__ = ("sha256", "data")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    data: bytes
    def __init__(self, sha256: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class MeasureResponse(_message.Message):
    __slots__ = ("accepted", "timed", "memory_bytes", "device_memory_bytes", "served")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TIMED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    timed: TimedBlock
    memory_bytes: float
    device_memory_bytes: float
    served: int
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., timed: _Optional[_Union[TimedBlock, _Mapping]] = ..., memory_bytes: _Optional[float] = ..., device_memory_bytes: _Optional[float] = ..., served: _Optional[int] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("lacking", "machine")
    LACKING_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    lacking: _containers.RepeatedCompositeFieldContainer[Lacking]
    machine: Machine
    def __init__(self, lacking: _Optional[_Iterable[_Union[Lacking, _Mapping]]] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ...) -> None: ...

class Lacking(_message.Message):
    __slots__ = ("sha256", "offset")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    offset: int
    def __init__(self, sha256: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class TimedBlock(_message.Message):
    __slots__ = ("batch", "block", "seconds")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    batch: int
    block: int
    seconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, batch: _Optional[int] = ..., block: _Optional[int] = ..., seconds: _Optional[_Iterable[float]] = ...) -> None: ...
