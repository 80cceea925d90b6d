"""The descriptors of one `.proto` file, in a pool of their own.

A payload is an instance of the first message in the text. Messages that it does not reach are not in payloads.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from pydanube_core.errors import SchemaInvalid


class ProtoFile:
    """`root` is the descriptor of the payloads' message."""

    __slots__ = ("_pool", "root")

    def __init__(self, pool: descriptor_pool.DescriptorPool, root: Any) -> None:
        self._pool = pool  # descriptors live as long as their pool
        self.root = root

    def message_class(self) -> Any:
        return message_factory.GetMessageClass(self.root)


def parse_descriptors(serialized: bytes) -> ProtoFile:
    """Parse the result of `compile_proto`. Raises `SchemaInvalid`: no message in the file, or invalid bytes."""
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(serialized).file
        for file in files:
            pool.Add(file)
        last = files[-1]
    except (DecodeError, TypeError, IndexError) as error:
        raise SchemaInvalid(
            f"the Protobuf descriptors cannot be loaded: {str(error)[:200]}",
            field="schema_definition",
            path="/",
        ) from None
    if not last.message_type:
        raise SchemaInvalid(
            "the Protobuf schema has no message: payloads are of the first message in the file",
            field="schema_definition",
            path="/",
        )
    name = last.message_type[0].name
    full = f"{last.package}.{name}" if last.package else name
    return ProtoFile(pool, pool.FindMessageTypeByName(full))


def fields_of(message: Any) -> dict[int, Any]:
    """Return the fields of a message by number, including extensions."""
    found = {field.number: field for field in message.fields}
    if message.is_extendable:
        found |= {field.number: field for field in message.file.pool.FindAllExtensions(message)}
    return found


def label(field: Any) -> str:
    """Return a field's name. For an extension `[note]`, or `[Scope.note]` if declared in a message."""
    if not field.is_extension:
        return str(field.name)
    package = field.file.package
    return f"[{field.full_name.removeprefix(package + '.') if package else field.full_name}]"
