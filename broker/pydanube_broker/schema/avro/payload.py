"""Checks payloads against an Avro schema: bare datum, single-object encoding, or object container file.

The reader of `pydanube_core.schema_formats.avro.reading` walks a datum. Here it builds no values and ignores logical types, so a
timestamp of the year 20000 is valid.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Final

import fastavro.schema
from pydanube_core.errors import ClusterError, PayloadInvalid
from pydanube_core.recent import RecentDict
from pydanube_core.schema_formats.avro.model import AvroType
from pydanube_core.schema_formats.avro.parse import parse_avro
from pydanube_core.schema_formats.avro.reading import AvroReader, Shape
from pydanube_core.schema_formats.avro.steps import (
    CONTAINER_MAGIC,
    ReadStep,
    Room,
    read_bytes,
    read_count,
    read_number,
    read_whole,
)
from pydanube_core.schema_formats.fault import Fault

from pydanube_broker.schema.avro.resolution import resolve
from pydanube_broker.schema.differences import Direction
from pydanube_broker.schema.json_text import loads_strict

SINGLE_OBJECT_MAGIC: Final = b"\xc3\x01"
MAX_INFLATED_BYTES: Final = 64 << 20  # per container file, over all its blocks
MAX_WRITERS: Final = 16  # schemas of container files whose result is cached
_SYNC_BYTES: Final = 16


class AvroPayload:
    """Checks payloads of one schema.

    Args:
        tree: the schema.
        text: the registered text, for its fingerprint.
    """

    def __init__(self, tree: AvroType, text: bytes) -> None:
        self._tree = tree
        self._step = AvroReader(Shape()).written(tree)
        self._fingerprint = _crc64_fingerprint(text)
        self._writers: RecentDict[bytes, ReadStep | PayloadInvalid] = RecentDict(MAX_WRITERS)

    def check(self, payload: bytes) -> None:
        """Check a payload. Raises `PayloadInvalid`: `details["at"]` is the first invalid byte.

        A bare datum may also begin with a magic number (a fixed of four bytes can be anything). So a payload that is
        not a valid container file may still be a valid datum.
        """
        if payload.startswith(CONTAINER_MAGIC):
            fault = _fault(self._check_container, payload)
        elif payload.startswith(SINGLE_OBJECT_MAGIC) and payload[2:10] == self._fingerprint:
            fault = _fault(lambda data: read_whole(self._step, data, 10, None), payload)
        else:
            fault = _fault(self._check_bare, payload)
            if fault is not None:
                raise fault
            return
        if fault is not None and _fault(self._check_bare, payload) is not None:
            raise fault

    def _check_bare(self, payload: bytes) -> None:
        read_whole(self._step, payload, 0, None)

    def _check_container(self, payload: bytes) -> None:
        """Check a container file: its data must conform to its own schema, and ours must be able to read that."""
        header: dict[bytes, bytes] = {}
        at = len(CONTAINER_MAGIC)
        while True:
            count, at = read_count(payload, at)
            if not count:
                break
            for _ in range(count):
                key, at = read_bytes(payload, at)
                header[key], at = read_bytes(payload, at)
        step = self._writer(header.get(b"avro.schema", b""))
        codec = header.get(b"avro.codec", b"null")
        if codec not in (b"null", b"deflate"):
            raise Fault(f"a container file with codec {codec[:20]!r}: use null or deflate", at)
        marker, at = payload[at : at + _SYNC_BYTES], at + _SYNC_BYTES
        left = MAX_INFLATED_BYTES
        if at >= len(payload):
            raise Fault("the container file holds nothing", at)
        while at < len(payload):
            count, at = read_number(payload, at)
            block, at = read_bytes(payload, at)
            if payload[at : at + _SYNC_BYTES] != marker or len(marker) != _SYNC_BYTES:
                raise Fault("a block of the container file does not end with its marker", at)
            at += _SYNC_BYTES
            if codec == b"deflate":
                block = _inflate(block, left, at)
            left -= len(block)
            end = 0
            # Data of zero bytes need no check, and their count is not trustworthy.
            for _ in range(count if block else 0):
                begin, end = end, step(block, end, Room(), None)
                if end == begin:
                    break
                if end > len(block):
                    raise Fault("a block of the container file ends too early", at)
            if end != len(block) or count < 0:
                raise Fault("a block of the container file has more records than its count", at)

    def _writer(self, text: bytes) -> ReadStep:
        """Return the reading step for a container file's schema. Raises `PayloadInvalid` if ours cannot read its data."""
        found = self._writers.get(text)
        if found is None:
            try:
                tree = parse_avro(loads_strict(text))
                differences = resolve(tree, self._tree, Direction.BACKWARD)
                found = AvroReader(Shape()).written(tree)
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
    except Fault as fault:
        return _invalid(len(payload) if fault.at is None else fault.at, fault.why)
    except IndexError:
        return _invalid(len(payload), "the datum ends too early")
    return None


def _crc64_fingerprint(text: bytes) -> bytes:
    """Return the CRC-64-AVRO of the Parsing Canonical Form, as in the single-object encoding."""
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
        raise Fault(f"a block does not inflate: {error}", at) from None
    if len(data) > limit:
        raise Fault(f"the blocks inflate to more than {MAX_INFLATED_BYTES} bytes", at)
    return data
