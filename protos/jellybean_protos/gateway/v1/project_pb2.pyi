from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReportStoreRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportStoreResponse(_message.Message):
    __slots__ = ("database",)
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    database: bytes
    def __init__(self, database: _Optional[bytes] = ...) -> None: ...

class ProjectFilesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProjectFilesResponse(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[ProjectFile]
    def __init__(self, files: _Optional[_Iterable[_Union[ProjectFile, _Mapping]]] = ...) -> None: ...

class ProjectFile(_message.Message):
    __slots__ = ("path", "content")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    path: str
    content: bytes
    def __init__(self, path: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...
