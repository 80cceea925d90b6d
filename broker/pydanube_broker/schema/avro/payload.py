"""Payloads held against an Avro schema: bare datum, single-object encoding, or an object container file.

A datum is walked, not decoded: the schema is compiled into functions that step over a value and say where the next
one begins ("Binary Encoding"). A library would build objects only to drop them, refuse what logical types cannot
show (a timestamp of the year 20000 is a datum), and go down by recursion in C: 5 000 levels of a linked list end
the process (seen, fastavro 1.13). Here nesting is bounded, and every step of a loop and every record consumes a byte
(types whose data take none are not walked), so that the work is linear in the payload whatever counts and schema
claim.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Final

import fastavro.schema
from pydanube_core.errors import ClusterError, PayloadInvalid
from pydanube_core.recent import RecentDict

from pydanube_broker.schema.avro.model import (
    Array,
    AvroType,
    Enumeration,
    Fixed,
    MapType,
    Primitive,
    Record,
    Union,
)
from pydanube_broker.schema.avro.parse import parse_avro
from pydanube_broker.schema.avro.resolution import resolve
from pydanube_broker.schema.differences import Direction
from pydanube_broker.schema.json_text import loads_strict

CONTAINER_MAGIC: Final = b"Obj\x01"
SINGLE_OBJECT_MAGIC: Final = b"\xc3\x01"
MAX_NESTING: Final = 200  # of data; static nesting is at most parse.MAX_DEPTH, the rest is recursion
MAX_INFLATED_BYTES: Final = 64 << 20  # of all blocks of one container file
MAX_EMPTY_ITEMS: Final = 100_000  # of a list whose items take no bytes: its count is then anybody's word
MAX_WRITERS: Final = 16  # schemas of container files whose verdict is remembered
_SYNC_BYTES: Final = 16

#: (data, position, nesting) → position behind the value
Step = Callable[[bytes, int, int], int]


class AvroPayload:
    """Checks payloads of one schema.

    Args:
        tree: the schema.
        text: the schema as it was registered, for its fingerprint.
    """

    def __init__(self, tree: AvroType, text: bytes) -> None:
        self._tree = tree
        self._step = _compile(tree)
        self._fingerprint = _crc64_fingerprint(text)
        self._writers: RecentDict[bytes, Step | PayloadInvalid] = RecentDict(MAX_WRITERS)

    def check(self, payload: bytes) -> None:
        """Check a payload. Raises `PayloadInvalid`: `details["at"]` is the byte from which it is no valid datum.

        A magic number may be the beginning of a bare datum, too (a fixed of four bytes is anything): a payload that
        is wrong as what it looks like may be right as a datum.
        """
        if payload.startswith(CONTAINER_MAGIC):
            fault = _fault(self._check_container, payload)
        elif payload.startswith(SINGLE_OBJECT_MAGIC) and payload[2:10] == self._fingerprint:
            fault = _fault(lambda data: _whole(self._step, data, 10), payload)
        else:
            fault = _fault(self._check_bare, payload)
            if fault is not None:
                raise fault
            return
        if fault is not None and _fault(self._check_bare, payload) is not None:
            raise fault

    def _check_bare(self, payload: bytes) -> None:
        _whole(self._step, payload, 0)

    def _check_container(self, payload: bytes) -> None:
        """Check a container file: every datum fits the file's own schema, which ours must be able to read."""
        header: dict[bytes, bytes] = {}
        at = len(CONTAINER_MAGIC)
        while True:
            count, at = _count(payload, at)
            if not count:
                break
            for _ in range(count):
                key, at = _take(payload, at)
                header[key], at = _take(payload, at)
        step = self._writer(header.get(b"avro.schema", b""))
        codec = header.get(b"avro.codec", b"null")
        if codec not in (b"null", b"deflate"):
            raise _invalid(at, f"a container file with codec {codec[:20]!r}: use null or deflate")
        marker, at = payload[at : at + _SYNC_BYTES], at + _SYNC_BYTES
        left = MAX_INFLATED_BYTES
        if at >= len(payload):
            raise _invalid(at, "the container file holds nothing")
        while at < len(payload):
            count, at = _number(payload, at)
            block, at = _take(payload, at)
            if payload[at : at + _SYNC_BYTES] != marker or len(marker) != _SYNC_BYTES:
                raise _invalid(at, "a block of the container file does not end with its marker")
            at += _SYNC_BYTES
            if codec == b"deflate":
                block = _inflate(block, left, at)
            left -= len(block)
            end = 0
            # Data that take no bytes need no look, and their number is anybody's word.
            for _ in range(count if len(block) and step is not _null else 0):
                end = step(block, end, 0)
                if end > len(block):
                    raise _invalid(at, "a block of the container file ends too early")
            if end != len(block) or count < 0:
                raise _invalid(at, "a block of the container file holds more than its count says")

    def _writer(self, text: bytes) -> Step:
        """The steps of a container file's schema, if data of it can be read with ours."""
        found = self._writers.get(text)
        if found is None:
            try:
                tree = parse_avro(loads_strict(text))
                differences = resolve(tree, self._tree, Direction.BACKWARD)
                found = _compile(tree)
            except (ClusterError, ValueError, RecursionError) as error:
                found = _invalid(4, f"the schema of the container file cannot be read: {error}")
            else:
                if differences:
                    found = _invalid(
                        4, f"written with a schema that ours cannot read: {differences[0].sentence()}"
                    )
            self._writers[text] = found
        if isinstance(found, PayloadInvalid):
            raise found
        return found


def _fault(check: Callable[[bytes], None], payload: bytes) -> PayloadInvalid | None:
    try:
        check(payload)
    except PayloadInvalid as error:
        return error
    except IndexError:
        return _invalid(len(payload), "the datum ends too early")
    return None


def _whole(step: Step, data: bytes, at: int) -> None:
    end = step(data, at, 0)
    if end > len(data):
        raise _invalid(len(data), "the datum ends too early")
    if end < len(data):
        raise _invalid(end, f"{len(data) - end} bytes are left over behind the datum")


def _crc64_fingerprint(text: bytes) -> bytes:
    """CRC-64-AVRO of the Parsing Canonical Form, as it stands in the single-object encoding."""
    canonical = fastavro.schema.to_parsing_canonical_form(json.loads(text))
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def _invalid(at: int, why: str) -> PayloadInvalid:
    return PayloadInvalid(
        f"the payload is no datum of the Avro schema, at byte {at}: {why}", field="payload", value=at, at=at
    )


def _inflate(block: bytes, limit: int, at: int) -> bytes:
    inflater = zlib.decompressobj(-15)
    try:
        data = inflater.decompress(block, limit + 1)
    except zlib.error as error:
        raise _invalid(at, f"a block does not inflate: {error}") from None
    if len(data) > limit:
        raise _invalid(at, f"the blocks inflate to more than {MAX_INFLATED_BYTES} bytes")
    return data


# Reading. A position beyond the end is found where the next byte is read (IndexError), or at the very end (`_whole`).


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of at most 10 bytes, and where it ends."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise _invalid(at, "a number is longer than 64 bits")
    value = (value >> 1) ^ -(value & 1)
    if not -(1 << 63) <= value < 1 << 63:
        raise _invalid(at, "a number is longer than 64 bits")
    return value, at


def _count(data: bytes, at: int) -> tuple[int, int]:
    """How many items a block of an array or a map has; 0 ends it."""
    count, at = _number(data, at)
    if count < 0:  # then its size in bytes follows
        _, at = _number(data, at)
        count = -count
    return count, at


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(data, at)
    if size < 0 or at + size > len(data):
        raise _invalid(at, f"{size} bytes are announced, {len(data) - at} are left")
    return data[at : at + size], at + size


# Compiling


def _compile(tree: AvroType) -> Step:
    return _Compiler().step(tree)


class _Compiler:
    def __init__(self) -> None:
        self._records: dict[int, list[Step]] = {}
        self._empty: dict[int, bool] = {}

    def step(self, kind: AvroType) -> Step:
        match kind:
            case Primitive(name=name):
                return _PRIMITIVES[name]
            case Fixed(size=size):
                return _fixed(size) if size else _null
            case Enumeration(symbols=symbols):
                return _enumeration(len(symbols))
            case Union(branches=branches):
                return _union([self.step(branch) for branch in branches])
            case Array(items=items):
                if self._takes_no_bytes(items):
                    return _empty_items
                return _items(self.step(items))
            case MapType(values=values):
                return _entries(self.step(values))
            case Record(fields=fields):
                if self._takes_no_bytes(kind):
                    return _null
                known = self._records.get(id(kind))
                if known is None:
                    known = self._records[id(kind)] = []
                    known += [self.step(field.type) for field in fields]
                return _record(known)

    def _takes_no_bytes(self, kind: AvroType) -> bool:
        """Return whether a record takes no bytes; cached for each record, as paths through fields can be 2^n."""
        match kind:
            case Primitive(name=name):
                return name == "null"
            case Fixed(size=size):
                return size == 0
            case Record(fields=fields):
                if id(kind) not in self._empty:
                    # One that lies in itself without a choice has no data at all
                    self._empty[id(kind)] = False
                    self._empty[id(kind)] = all(self._takes_no_bytes(field.type) for field in fields)
                return self._empty[id(kind)]
            case _:
                return False


def _fixed(size: int) -> Step:
    return lambda data, at, nesting: at + size


def _null(data: bytes, at: int, nesting: int) -> int:
    return at


def _boolean(data: bytes, at: int, nesting: int) -> int:
    if data[at] > 1:
        raise _invalid(at, f"a boolean is 0 or 1, not {data[at]}")
    return at + 1


def _int(data: bytes, at: int, nesting: int) -> int:
    value, end = _number(data, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise _invalid(at, f"{value} is no int")
    return end


def _long(data: bytes, at: int, nesting: int) -> int:
    return _number(data, at)[1]


def _bytes(data: bytes, at: int, nesting: int) -> int:
    return _take(data, at)[1]


def _string(data: bytes, at: int, nesting: int) -> int:
    text, end = _take(data, at)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise _invalid(end - len(text) + error.start, "a string is not UTF-8") from None
    return end


_PRIMITIVES: Final[dict[str, Step]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": lambda data, at, nesting: at + 4,
    "double": lambda data, at, nesting: at + 8,
    "bytes": _bytes,
    "string": _string,
}


def _enumeration(symbols: int) -> Step:
    def step(data: bytes, at: int, nesting: int) -> int:
        index, end = _number(data, at)
        if not 0 <= index < symbols:
            raise _invalid(at, f"an enum of {symbols} symbols has none of index {index}")
        return end

    return step


def _union(branches: list[Step]) -> Step:
    def step(data: bytes, at: int, nesting: int) -> int:
        index, end = _number(data, at)
        if not 0 <= index < len(branches):
            raise _invalid(at, f"a union of {len(branches)} branches has none of index {index}")
        return branches[index](data, end, nesting)

    return step


def _record(fields: list[Step]) -> Step:
    def step(data: bytes, at: int, nesting: int) -> int:
        if nesting > MAX_NESTING:
            raise _invalid(at, f"the datum is nested deeper than {MAX_NESTING}")
        nesting += 1
        for field in fields:
            at = field(data, at, nesting)
            if at > len(data):  # what does not look at its bytes, like a float, must not go on behind them
                raise _invalid(len(data), "the datum ends too early")
        return at

    return step


def _items(item: Step) -> Step:
    def step(data: bytes, at: int, nesting: int) -> int:
        while True:
            count, at = _count(data, at)
            if not count:
                return at
            for _ in range(count):
                at = item(data, at, nesting)
                if at > len(data):
                    raise _invalid(len(data), "the datum ends too early")

    return step


def _empty_items(data: bytes, at: int, nesting: int) -> int:
    """Account for items that take no bytes: skipping them is free, but a consumer has to build them."""
    while True:
        count, at = _count(data, at)
        if count > MAX_EMPTY_ITEMS:
            raise _invalid(at, f"{count} items that take no bytes, at most {MAX_EMPTY_ITEMS} are taken")
        if not count:
            return at


def _entries(value: Step) -> Step:
    def step(data: bytes, at: int, nesting: int) -> int:
        while True:
            count, at = _count(data, at)
            if not count:
                return at
            for _ in range(count):
                at = value(data, _string(data, at, nesting), nesting)

    return step
