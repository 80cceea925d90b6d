"""Compatibility of two Protobuf schemas, by field numbers and wire types.

Rules: protobuf.dev, "Updating A Message Type", "Encoding" and "Reserved Fields". The comparison covers the first
messages of both files and all messages they reach, by field number. Names of messages are not on the wire and may
change. Unknown values of closed enums and numbers that lose their field go to the unknown fields, so they count as not
read.

Extensions are fields of the message they extend, anywhere in the files. A reader sees an absent field as its default,
so the default is part of the data.

A number that was used once must never get another meaning. Versions are compared only with their neighbour, so a
`reserved` line must protect the number later ("Reserved Fields"): removing a field requires one, and no version may
remove it, in either direction.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FeatureSet
from pydanube_core.schema_formats.protobuf.descriptors import ProtoFile, fields_of, label

from pydanube_broker.schema.differences import Difference, Direction, Findings

_F: Final = FieldDescriptor
# "int32, uint32, int64, uint64, and bool are all compatible", enum "with int32, uint32, int64 and uint64 in terms
# of wire format"; "sint32 and sint64 are compatible with each other"; fixed32 with sfixed32, fixed64 with sfixed64.
_VARINT: Final = frozenset({_F.TYPE_INT32, _F.TYPE_UINT32, _F.TYPE_INT64, _F.TYPE_UINT64})
_GROUPS: Final[tuple[frozenset[int], ...]] = (
    _VARINT | {_F.TYPE_BOOL},
    _VARINT | {_F.TYPE_ENUM},
    frozenset({_F.TYPE_SINT32, _F.TYPE_SINT64}),
    frozenset({_F.TYPE_FIXED32, _F.TYPE_SFIXED32}),
    frozenset({_F.TYPE_FIXED64, _F.TYPE_SFIXED64}),
)
# "string and bytes are compatible as long as the bytes are valid UTF-8", "embedded messages are compatible with
# bytes if the bytes contain an encoded instance": certain in one direction only. (writer, reader)
_ONE_WAY: Final = frozenset({(_F.TYPE_STRING, _F.TYPE_BYTES), (_F.TYPE_MESSAGE, _F.TYPE_BYTES)})
_LENGTH_DELIMITED: Final = frozenset({_F.TYPE_STRING, _F.TYPE_BYTES, _F.TYPE_MESSAGE})
# Bits of the types allowed as map keys. A key with at least as many bits keeps different keys different.
_BITS: Final = {
    _F.TYPE_BOOL: 1,
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_UINT32, _F.TYPE_SINT32, _F.TYPE_FIXED32, _F.TYPE_SFIXED32), 32),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_UINT64, _F.TYPE_SINT64, _F.TYPE_FIXED64, _F.TYPE_SFIXED64), 64),
}
_NAMES: Final = {
    getattr(_F, name): name.removeprefix("TYPE_").lower() for name in dir(_F) if name.startswith("TYPE_")
}


def compare_protobuf(old: ProtoFile, new: ProtoFile, direction: Direction) -> list[Difference]:
    """Return the reasons why the reader would lose or misread data of the writer. Empty if there are none."""
    findings = Findings(direction)
    comparison = _Comparison(findings)
    if direction is Direction.BACKWARD:
        comparison.messages(old.root, new.root, new.root.name)
    else:
        comparison.messages(new.root, old.root, new.root.name)
    return findings.found


class _Comparison:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._writer_is_old = findings.direction is Direction.BACKWARD
        self._seen: set[tuple[str, str]] = set()

    def messages(self, writer: Any, reader: Any, path: str) -> None:
        # iterative, because a chain of messages may exceed the recursion limit
        work = [(writer, reader, path)]
        while work:
            one, other, at = work.pop(0)
            if (one.full_name, other.full_name) in self._seen:
                continue
            self._seen.add((one.full_name, other.full_name))
            work += self._message(one, other, at)

    def _message(self, writer: Any, reader: Any, path: str) -> list[tuple[Any, Any, str]]:
        written, read = fields_of(writer), fields_of(reader)
        below: list[tuple[Any, Any, str]] = []
        for number, field in written.items():
            other = read.get(number)
            if other is not None:
                below += self._field(field, other, f"{path}.{label(other)}")
        for number, field in read.items():
            if number not in written and field.is_required:
                self._findings.add(
                    f"{path}.{label(field)}", "required_field_not_written", writer=None, reader=_shown(field)
                )
        self._renumbered(written, read, path)
        self._oneofs(writer, reader, path)
        self._reservations(of_message, writer, reader, path)
        if _is_map_entry(writer) and _is_map_entry(reader):
            self._map_keys(writer, reader, path)
        return below

    def _field(self, writer: Any, reader: Any, path: str) -> list[tuple[Any, Any, str]]:
        """Compare a field number that both have. Return the messages to compare below it."""
        if reader.is_required and not writer.is_required:
            self._add(path, "field_became_required", writer, reader)
        if writer.is_repeated and not reader.is_repeated and not _is_lenient(writer, reader):
            self._add(path, "repeated_became_singular", writer, reader)
        if writer.type != reader.type and (writer.type, reader.type) not in _ONE_WAY:
            if not any(writer.type in group and reader.type in group for group in _GROUPS):
                self._add(
                    path,
                    "wire_type_changed" if _wire(writer) != _wire(reader) else "type_changed",
                    writer,
                    reader,
                )
                return []
            if reader.type == _F.TYPE_ENUM and reader.enum_type.is_closed:
                self._add(path, "closed_enum_reads_numbers", writer, reader)
        if writer.type == reader.type == _F.TYPE_STRING and _checks_utf8(reader) and not _checks_utf8(writer):
            self._add(path, "utf8_enforced", writer, reader)
        self._defaults(writer, reader, path)
        if writer.type == reader.type == _F.TYPE_ENUM:
            self._enums(writer.enum_type, reader.enum_type, path)
        if writer.message_type is not None and reader.message_type is not None:
            if _is_map(reader) and not _is_map(writer):
                self._add(path, "became_map", writer, reader)  # items with the same key become one entry
                return []
            if _is_map(writer) and not reader.is_repeated:
                self._add(path, "map_changed", writer, reader)
                return []
            return [(writer.message_type, reader.message_type, path)]
        return []

    def _defaults(self, writer: Any, reader: Any, path: str) -> None:
        """Compare the defaults of a field. As "default values are never sent", an absent field would change its value."""
        if writer.is_repeated or reader.is_repeated or writer.is_required:
            return
        if writer.message_type is not None or reader.message_type is not None:
            return
        if _default(writer) != _default(reader):
            self._findings.add(path, "default_changed", writer=_default(writer), reader=_default(reader))

    def _map_keys(self, writer: Any, reader: Any, path: str) -> None:
        """Compare map keys. With fewer bits, different keys become equal and entries are lost."""
        mine, its = writer.fields_by_name["key"], reader.fields_by_name["key"]
        if _BITS.get(mine.type, 0) > _BITS.get(its.type, 64):
            self._add(f"{path}.key", "map_key_narrowed", mine, its)

    def _enums(self, writer: Any, reader: Any, path: str) -> None:
        """Compare enums. An open enum keeps unknown values, a closed one does not ("Enum Behavior")."""
        if reader.is_closed and not writer.is_closed:
            self._findings.add(path, "enum_became_closed", writer="open", reader="closed")
        self._reservations(of_enum, writer, reader, path)
        known = {value.name: value.number for value in reader.values}
        numbers = set(known.values())
        for value in writer.values:
            if known.get(value.name, value.number) != value.number:
                self._findings.add(
                    f"{path}.{value.name}",
                    "enum_value_renumbered",
                    writer=value.number,
                    reader=known[value.name],
                )
            elif value.number not in numbers and reader.is_closed:
                self._findings.add(
                    f"{path}.{value.name}", "enum_value_unknown", writer=value.number, reader=None
                )

    def _renumbered(self, written: Mapping[int, Any], read: Mapping[int, Any], path: str) -> None:
        """Find renumbered fields. It "is equivalent to deleting the field and creating a new one": the data is lost."""
        by_name = {label(field): field for field in read.values()}
        for number, field in written.items():
            other = by_name.get(label(field))
            if other is not None and other.number != number:
                self._findings.add(
                    f"{path}.{label(field)}", "field_renumbered", writer=number, reader=other.number
                )

    def _oneofs(self, writer: Any, reader: Any, path: str) -> None:
        """Find fields moved into a oneof, where only the last one on the wire counts.

        "Moving multiple fields into a new oneof may be safe if you are sure that no code sets more than one at a time.
        Moving any fields into an existing oneof is not safe."
        """
        for oneof in _real_oneofs(reader):
            together = [
                writer.fields_by_number[field.number]
                for field in oneof.fields
                if field.number in writer.fields_by_number
            ]
            origins = {None if (home := _home(field)) is None else home.name for field in together}
            if len(together) > 1 and (len(origins) > 1 or None in origins):
                self._findings.add(
                    f"{path}.{oneof.name}",
                    "fields_moved_into_oneof",
                    writer=[field.name for field in together],
                    reader=oneof.name,
                )

    def _reservations(self, read: Callable[[Any], Reserved], writer: Any, reader: Any, path: str) -> None:
        old, new = (writer, reader) if self._writer_is_old else (reader, writer)
        for place, rule, before, after in broken_reservations(read(old), read(new)):
            self._old_new(f"{path}.{place}" if place else path, rule, before, after)

    def _add(self, path: str, rule: str, writer: Any, reader: Any) -> None:
        self._findings.add(path, rule, writer=_shown(writer), reader=_shown(reader))

    def _old_new(self, path: str, rule: str, old: Any, new: Any) -> None:
        writer, reader = (old, new) if self._writer_is_old else (new, old)
        self._findings.add(path, rule, writer=writer, reader=reader)


def _is_lenient(writer: Any, reader: Any) -> bool:
    """Return whether repeated may become singular: "for string, bytes, and message fields". Numbers may be packed."""
    return writer.type in _LENGTH_DELIMITED and reader.type in _LENGTH_DELIMITED and not _is_map(writer)


def _wire(field: Any) -> int:
    kind = field.type
    if kind in _LENGTH_DELIMITED:
        return 2
    if kind == _F.TYPE_GROUP:
        return 3
    if kind in (_F.TYPE_FIXED64, _F.TYPE_SFIXED64, _F.TYPE_DOUBLE):
        return 1
    return 5 if kind in (_F.TYPE_FIXED32, _F.TYPE_SFIXED32, _F.TYPE_FLOAT) else 0


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _home(field: Any) -> Any:
    """Return the declared oneof of a field. The synthetic one of `optional` does not count."""
    oneof = field.containing_oneof
    return oneof if oneof is not None and oneof in _real_oneofs(field.containing_type) else None


def _real_oneofs(message: Any) -> list[Any]:
    return [
        oneof
        for oneof in message.oneofs
        if not (len(oneof.fields) == 1 and oneof.name == f"_{oneof.fields[0].name}")
    ]


def _is_map_entry(message: Any) -> bool:
    return bool(message.GetOptions().map_entry)


def _checks_utf8(field: Any) -> bool:
    """Return whether parsers of this field refuse invalid UTF-8 (proto3 and editions, not proto2)."""
    return bool(field._GetFeatures().utf8_validation == FeatureSet.VERIFY)


def _default(field: Any) -> Any:
    """Return a field's default, in a form that is equal for 0 and false, and for text and its bytes."""
    value = field.default_value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value


def of_message(message: Any) -> Reserved:
    proto = DescriptorProto()
    message.CopyToProto(proto)
    return Reserved(
        what="field",
        used={number: (label(field), _shown(field)) for number, field in fields_of(message).items()},
        ranges=[(each.start, each.end) for each in proto.reserved_range],
        names=frozenset(proto.reserved_name),
    )


def of_enum(enum: Any) -> Reserved:
    proto = EnumDescriptorProto()
    enum.CopyToProto(proto)
    return Reserved(
        what="enum_value",
        used={value.number: (value.name, f"{value.name} = {value.number}") for value in enum.values},
        # For enums the end is inclusive
        ranges=[(each.start, each.end + 1) for each in proto.reserved_range],
        names=frozenset(proto.reserved_name),
    )


def _shown(field: Any) -> str:
    """Return a field as in `.proto` text."""
    kind = _NAMES[field.type]
    if field.message_type is not None:
        kind = field.message_type.name
        if _is_map(field):
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            kind = f"map<{_NAMES[key.type]}, {_type_name(value)}>"
    elif field.enum_type is not None:
        kind = field.enum_type.name
    prefix = (
        "required " if field.is_required else "repeated " if field.is_repeated and not _is_map(field) else ""
    )
    return f"{prefix}{kind} {label(field)} = {field.number}"


def _type_name(field: Any) -> str:
    named = field.message_type or field.enum_type
    return _NAMES[field.type] if named is None else str(named.name)


Range = tuple[int, int]
#: place below the message or enum, rule, before, after
Broken = tuple[str, str, str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Reservations of one message or enum. `used`: number → (name, its text in `.proto`). `ranges` are half-open."""

    what: str  # field, enum_value
    used: Mapping[int, tuple[str, str]]
    ranges: Sequence[Range]
    names: frozenset[str]


def broken_reservations(old: Reserved, new: Reserved) -> Iterator[Broken]:
    """Yield the reserved numbers and names that the new version uses, and those it no longer protects."""
    before, after = _Ranges(old.ranges), _Ranges(new.ranges)
    names = {name for name, _ in new.used.values()}
    for number, (name, shown) in new.used.items():
        if number in before:
            yield name, "reserved_number_used", f"reserved {number}", shown
        if name in old.names:
            yield name, "reserved_name_used", f"reserved {name!r}", shown
    for number, (name, shown) in old.used.items():
        if number not in new.used and number not in after:
            yield name, f"{old.what}_removed_not_reserved", shown, None
    used = sorted(new.used)
    for start, end in old.ranges:
        at = bisect_right(used, start - 1)
        if not after.covers(start, end) and not (at < len(used) and used[at] < end):
            yield "", "reservation_removed", _text(start, end), None
    for name in sorted(old.names - new.names - names):
        yield "", "reservation_removed", name, None


class _Ranges:
    """A union of many ranges, searched by bisection."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(ranges):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def __contains__(self, number: int) -> bool:
        return self.covers(number, number + 1)

    def covers(self, start: int, end: int) -> bool:
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and end <= self._ends[at]


def _text(start: int, end: int) -> str:
    return f"reserved {start}" if end == start + 1 else f"reserved {start} to {end - 1}"
