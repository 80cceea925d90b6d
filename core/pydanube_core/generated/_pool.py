"""The private descriptor pool of our generated modules, and the step that turns descriptors into classes.

protoc's own output registers files in the process-wide default pool, where a second file that defines
`danube.ProducerRequest` is an error: whoever of us and the official client came second would fail to import. A
message class is bound to the pool of its descriptor, so a pool of our own is all it takes. What it costs: our
classes cannot be fields of messages from the default pool, nor can our sources import google/protobuf/*.proto
(the generator refuses them).

protoc's output also enters every class in the default symbol database. The C implementation does not mind, the
pure Python one files it in the default pool; hence `publish`, which makes the classes without that step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.internal import api_implementation
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

if TYPE_CHECKING:
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.reflection import GeneratedProtocolMessageType
elif api_implementation.Type() == "upb":
    # The public modules load the implementation in Python, too: 6 ms of every start.
    from google._upb._message import DescriptorPool
    from google._upb._message import MessageMeta as GeneratedProtocolMessageType
else:
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.reflection import GeneratedProtocolMessageType

__all__ = ["POOL", "publish"]

POOL: Final = DescriptorPool()


def publish(file: FileDescriptor, module_name: str, namespace: dict[str, Any]) -> None:
    """Put the classes, enums and enum values of one .proto file into the generated module's `namespace`.

    Descriptors are entered as well, under the names that the rest of the generated module uses: `_MSGID` for
    message MsgID, `_STREAMMESSAGE_ATTRIBUTESENTRY` for a message inside another, likewise enums and services.

    Args:
        file: the file, already in `POOL`; without extensions, which proto3 sources of ours do not have.
        module_name: becomes `__module__` of the classes, which is where pickle looks for them.
        namespace: `globals()` of the generated module.
    """
    assert file.pool is POOL, f"{file.name} is registered in a foreign pool"
    for name, enum in file.enum_types_by_name.items():
        namespace[f"_{name.upper()}"] = enum
        namespace[name] = EnumTypeWrapper(enum)
        namespace.update((value.name, value.number) for value in enum.values)
    for name, service in file.services_by_name.items():
        namespace[f"_{name.upper()}"] = service
    for name, message in file.message_types_by_name.items():
        _enter_descriptors(message, f"_{name.upper()}", namespace)
        namespace[name] = _message_class(message, name, module_name)


def _enter_descriptors(message: Descriptor, key: str, namespace: dict[str, Any]) -> None:
    namespace[key] = message
    for enum in message.enum_types:
        namespace[f"{key}_{enum.name.upper()}"] = enum
    for nested in message.nested_types:
        _enter_descriptors(nested, f"{key}_{nested.name.upper()}", namespace)


def _message_class(message: Descriptor, qualified_name: str, module_name: str) -> type[Message]:
    members: dict[str, Any] = {
        nested.name: _message_class(nested, f"{qualified_name}.{nested.name}", module_name)
        for nested in message.nested_types
    }
    members.update(DESCRIPTOR=message, __module__=module_name, __qualname__=qualified_name)
    return cast(type[Message], GeneratedProtocolMessageType(message.name, (Message,), members))
