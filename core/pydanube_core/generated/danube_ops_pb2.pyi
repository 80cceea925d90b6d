from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallRequest(_message.Message):
    __slots__ = ("operation", "arguments", "plan_token", "principal", "face", "read_only", "within", "client_name", "client_version", "by")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    PLAN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    FACE_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    WITHIN_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    operation: str
    arguments: bytes
    plan_token: str
    principal: str
    face: str
    read_only: bool
    within: CallRequest
    client_name: str
    client_version: str
    by: str
    def __init__(self, operation: _Optional[str] = ..., arguments: _Optional[bytes] = ..., plan_token: _Optional[str] = ..., principal: _Optional[str] = ..., face: _Optional[str] = ..., read_only: bool = ..., within: _Optional[_Union[CallRequest, _Mapping]] = ..., client_name: _Optional[str] = ..., client_version: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class CallResponse(_message.Message):
    __slots__ = ("result", "error")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    result: bytes
    error: bytes
    def __init__(self, result: _Optional[bytes] = ..., error: _Optional[bytes] = ...) -> None: ...
