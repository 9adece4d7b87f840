from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolRequest(_message.Message):
    __slots__ = ("secret", "request")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    secret: bytes
    request: bytes
    def __init__(self, secret: _Optional[bytes] = ..., request: _Optional[bytes] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: bytes
    def __init__(self, request: _Optional[bytes] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("chain", "ca", "gateway")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    chain: bytes
    ca: bytes
    gateway: str
    def __init__(self, chain: _Optional[bytes] = ..., ca: _Optional[bytes] = ..., gateway: _Optional[str] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("have", "fetched", "problem", "wait_s", "problem_plan")
    HAVE_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_PLAN_FIELD_NUMBER: _ClassVar[int]
    have: str
    fetched: str
    problem: str
    wait_s: float
    problem_plan: str
    def __init__(self, have: _Optional[str] = ..., fetched: _Optional[str] = ..., problem: _Optional[str] = ..., wait_s: _Optional[float] = ..., problem_plan: _Optional[str] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("plan", "peers", "later")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    peers: bytes
    later: bool
    def __init__(self, plan: _Optional[bytes] = ..., peers: _Optional[bytes] = ..., later: bool = ...) -> None: ...

class ModelRequest(_message.Message):
    __slots__ = ("sha256", "offset")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    offset: int
    def __init__(self, sha256: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ModelPart(_message.Message):
    __slots__ = ("data", "size")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    size: int
    def __init__(self, data: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...
