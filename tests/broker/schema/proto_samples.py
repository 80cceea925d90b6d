"""Random Protobuf files as descriptors, changes of them, and data: for holding verdicts against real decoding."""

from __future__ import annotations

import copy
import random
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from pydanube_core.schema_formats.protobuf.descriptors import ProtoFile, fields_of, parse_descriptors

__all__ = ["Data", "Files", "difference", "loaded", "raw_twin"]

F = FieldDescriptorProto
SCALARS = {
    F.TYPE_INT32: [0, 1, -1, 2**31 - 1, -(2**31)],
    F.TYPE_INT64: [0, -1, 2**40, 2**40 + 1],
    F.TYPE_UINT32: [0, 1, 2**32 - 1],
    F.TYPE_UINT64: [0, 2**63],
    F.TYPE_SINT32: [0, -7, 7],
    F.TYPE_FIXED32: [0, 9],
    F.TYPE_DOUBLE: [0.0, 2.5],
    F.TYPE_BOOL: [False, True],
    F.TYPE_STRING: ["", "text"],
    F.TYPE_BYTES: [b"", b"\xff\x00"],
}
KEYS = {
    F.TYPE_INT32: [0, 1, -1],
    F.TYPE_INT64: [1, 2**32 + 1, 2**33 + 1],
    F.TYPE_UINT64: [1, 2**32 + 1],
    F.TYPE_BOOL: [False, True],
    F.TYPE_STRING: ["a", "b"],
}


class Files:
    """One message `Order` with fields 1 to 4, a message `Line`, an enum `Kind`; proto2 with an extension at times."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def file(self) -> FileDescriptorProto:
        roll = self.random
        file = FileDescriptorProto(name="schema.proto", package="p", syntax=roll.choice(["proto2", "proto3"]))
        order = file.message_type.add(name="Order")
        line = file.message_type.add(name="Line")
        kind = file.enum_type.add(name="Kind")
        for number in roll.sample(range(3), roll.randrange(1, 4)) if file.syntax == "proto2" else range(2):
            kind.value.add(name=f"V{number}", number=number)
        for number in range(1, roll.randrange(2, 5)):
            self._add(order, number)
        for number in range(1, roll.randrange(2, 4)):
            self._add(line, number)
        if roll.random() < 0.3:
            self._extend(file)
        return finished(file)

    def _extend(self, file: FileDescriptorProto) -> None:
        if not file.extension:
            file.message_type[0].extension_range.add(start=100, end=200)
            file.extension.add(
                name="more", number=100, label=F.LABEL_OPTIONAL, extendee=".p.Order", type=self._scalar()
            )

    def _scalar(self) -> Any:
        return self.random.choice([*SCALARS])

    def _add(self, message: DescriptorProto, number: int) -> None:
        roll = self.random
        name = f"{message.name[0].lower()}{number}"
        field = message.field.add(name=name, number=number, label=F.LABEL_OPTIONAL)
        pick = roll.random()
        if pick < 0.15:
            field.type, field.type_name = F.TYPE_ENUM, ".p.Kind"
        elif pick < 0.3 and message.name == "Order":
            field.type, field.type_name = F.TYPE_MESSAGE, ".p.Line"
        elif pick < 0.45:
            self._make_map(message, field)
            return
        else:
            field.type = self._scalar()
            if roll.random() < 0.3 and field.type in (F.TYPE_INT32, F.TYPE_INT64):
                field.default_value = str(roll.randrange(3))
        if roll.random() < 0.3:
            field.label = F.LABEL_REPEATED

    def _make_map(self, message: DescriptorProto, field: FieldDescriptorProto) -> None:
        entry_name = f"{field.name.capitalize()}Entry"
        for index, nested in enumerate(message.nested_type):
            if nested.name == entry_name:
                del message.nested_type[index]
                break
        field.label, field.type = F.LABEL_REPEATED, F.TYPE_MESSAGE
        field.type_name = f".p.{message.name}.{entry_name}"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=self.random.choice([*KEYS]))
        entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL, type=self._scalar())

    def changed(self, file: FileDescriptorProto) -> FileDescriptorProto:
        made = copy.deepcopy(file)
        for _ in range(self.random.randrange(1, 3)):
            self._change(made)
        return finished(made)

    def _change(self, file: FileDescriptorProto) -> None:
        roll = self.random
        message = roll.choice([*file.message_type[:2]])
        field = roll.choice([*message.field]) if message.field else None
        maps = [each for each in message.nested_type if each.options.map_entry]
        match roll.randrange(11):
            case 0:
                file.syntax = "proto3" if file.syntax == "proto2" else "proto2"
            case 1 if field is not None and field.type != F.TYPE_MESSAGE:
                field.type = self._scalar()
                field.ClearField("type_name")
                field.ClearField("default_value")
            case 2 if field is not None and field.type in (F.TYPE_INT32, F.TYPE_INT64):
                field.default_value = str(roll.randrange(3))
            case 3 if field is not None:
                field.ClearField("default_value")
            case 4 if field is not None and not field.type_name.endswith("Entry"):
                field.label = F.LABEL_REPEATED if field.label == F.LABEL_OPTIONAL else F.LABEL_OPTIONAL
            case 5 if field is not None:
                message.field.remove(field)
                message.reserved_range.add(start=field.number, end=field.number + 1)
            case 6 if maps:
                roll.choice(maps).field[0].type = roll.choice([*KEYS])
            case 7 if maps:
                roll.choice(maps).options.map_entry = False
            case 8:
                file.enum_type[0].value.add(name=f"W{roll.randrange(9)}", number=roll.randrange(3, 6))
            case 9 if file.extension:
                file.extension[0].type = self._scalar()
            case 10:
                self._add(message, roll.randrange(5, 8))
            case _:
                pass


def finished(file: FileDescriptorProto) -> FileDescriptorProto:
    """What the compiler would refuse is put right."""
    values = {value.number: value for value in reversed(file.enum_type[0].value)}
    kept = [copy.deepcopy(value) for value in file.enum_type[0].value if values.get(value.number) is value]
    names: set[str] = set()
    del file.enum_type[0].value[:]
    for value in kept:
        if value.name not in names:
            names.add(value.name)
            file.enum_type[0].value.append(value)
    if file.syntax == "proto3":
        file.enum_type[0].value.sort(key=lambda value: value.number)
        if file.enum_type[0].value[0].number:
            file.enum_type[0].value.insert(0, type(file.enum_type[0].value[0])(name="V0", number=0))
        del file.extension[:]
        del file.message_type[0].extension_range[:]
    for message in file.message_type:
        seen: set[int] = set()
        for field in [*message.field]:
            if file.syntax == "proto3" or field.label == F.LABEL_REPEATED:
                field.ClearField("default_value")
            if field.number in seen:
                message.field.remove(field)
            seen.add(field.number)
    return file


def raw_twin(file: FileDescriptorProto) -> FileDescriptorProto:
    """The same on the wire, with bytes for the strings whose parsers do not look: they may hold anything."""
    made = copy.deepcopy(file)
    if made.syntax == "proto2":
        for field in (field for message in made.message_type for field in message.field):
            if field.type == F.TYPE_STRING:
                field.type = F.TYPE_BYTES
    return made


def loaded(file: FileDescriptorProto) -> ProtoFile:
    return parse_descriptors(FileDescriptorSet(file=[file]).SerializeToString())


class Data:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def fill(self, message: Any) -> Any:
        """Half of the fields, with values that matter."""
        roll = self.random
        for field in fields_of(message.DESCRIPTOR).values():
            if roll.random() < 0.4:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
                for one in KEYS[key.type]:
                    getattr(message, field.name)[one] = self._value(value)
            elif field.is_extension:
                message.Extensions[field] = self._value(field)
            elif field.is_repeated:
                for _ in range(roll.randrange(1, 3)):
                    if field.message_type is not None:
                        self._part(getattr(message, field.name).add(), roll.randrange(2))
                    else:
                        getattr(message, field.name).append(self._value(field))
            elif field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self.fill(getattr(message, field.name))
            else:
                setattr(message, field.name, self._value(field))
        return message

    def _part(self, message: Any, same: int) -> None:
        """A repeated message; half of them with the same first field, like entries of one key."""
        if not same:
            self.fill(message)

    def _value(self, field: Any) -> Any:
        if field.enum_type is not None:
            known = [value.number for value in field.enum_type.values]
            return self.random.choice(known if field.enum_type.is_closed else [*known, 77])
        return self.random.choice(SCALARS[field.type])


def difference(writer: Any, reader: Any, path: str = "") -> str | None:
    """Where a reader's message does not say what the writer's says, as far as they share fields of one type."""
    its = fields_of(reader.DESCRIPTOR)
    for number, field in fields_of(writer.DESCRIPTOR).items():
        other = its.get(number)
        at = f"{path}/{number}"
        if other is None:
            continue
        one, two = _got(writer, field), _got(reader, other)
        entries = [
            f.message_type is not None and f.message_type.GetOptions().map_entry for f in (field, other)
        ]
        if any(entries):
            if len(one) != len(two):
                return f"{at}: {len(one)} entries, {len(two)} read"
        elif field.is_repeated and other.is_repeated:
            if len(one) != len(two):
                return f"{at}: {len(one)} items, {len(two)} read"
            pairs = zip(one, two, strict=True)
            found = next((d for a, b in pairs if (d := _value_difference(field, other, a, b, at))), None)
            if found:
                return found
        elif not field.is_repeated and not other.is_repeated:
            found = _value_difference(field, other, one, two, at)
            if found:
                return found
    return None


def _got(message: Any, field: Any) -> Any:
    return message.Extensions[field] if field.is_extension else getattr(message, field.name)


def _value_difference(field: Any, other: Any, one: Any, two: Any, at: str) -> str | None:
    if field.message_type is not None and other.message_type is not None:
        return difference(one, two, at)
    text = {F.TYPE_STRING, F.TYPE_BYTES}
    if {field.type, other.type} <= text:
        one, two = (each.encode() if isinstance(each, str) else each for each in (one, two))
    elif field.type != other.type:
        return None  # integers of other widths: cut, as everybody knows
    return None if one == two else f"{at}: {one!r}, {two!r} read"
