"""Schemas of messages: look them up, register them, and read payloads by them.

A version never changes, so each is fetched once per client. JSON and text are decoded with the standard library. Avro
needs the extra `schema`, and Protobuf the application's classes.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from google.protobuf.message import DecodeError, Message
from pydanube_core.errors import InvalidArgument, MissingExtra, PayloadInvalid
from pydanube_core.extras import install_command
from pydanube_core.generated import danube_schema_pb2 as pb
from pydanube_core.recent import RecentDict

from pydanube.arguments import MOST, check_text, check_texts, shown
from pydanube.facts import SchemaRef, from_ms
from pydanube.payloads.shapes import built

TIMEOUT_S: Final = 30.0  # the compiler of a Protobuf schema may take its time
_MOST_VERSION: Final = (1 << 32) - 1
_FAULTS: Final = (  # raised by fastavro for wrong data
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    StopIteration,
    ArithmeticError,
)

Call = Callable[[str, bytes, float], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """One version of a subject. `definition` is as registered, byte for byte."""

    ref: SchemaRef
    subject: str
    schema_type: str  # bytes, string, number, avro, json_schema, protobuf
    definition: bytes
    fingerprint: str
    compatibility_mode: str
    description: str
    created_by: str
    created_at: datetime
    tags: tuple[str, ...]
    # Fastavro's form, at first use
    _parsed: list[Any] = field(default_factory=list, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The result of a registration. `is_new_version` is False if an equal schema was registered already."""

    subject: str
    ref: SchemaRef
    is_new_version: bool
    fingerprint: str


#: a subject (its latest version), (subject, version), or a result of `register`, `latest` or `get`
SchemaLike = str | tuple[str, int] | Schema | Registered


def schema_of(given: SchemaLike | None) -> tuple[str, int]:
    """Return subject and version of a producer's `schema=`. "" is no subject, 0 the latest version."""
    if given is None:
        return "", 0
    if isinstance(given, Schema | Registered):
        return given.subject, given.ref.schema_version
    pair = given if isinstance(given, tuple) and len(given) == 2 else (given, 0)
    subject, version = pair
    fits = isinstance(subject, str) and subject and type(version) is int and version <= _MOST_VERSION
    if not fits or version < (1 if pair is given else 0):
        raise InvalidArgument(
            f"schema {shown(given)!r}: give a subject, or (subject, version) with a version from 1 on",
            field="schema",
            value=repr(given)[:200],
        )
    check_text("schema", subject)
    return subject, version


class Schemas:
    """The cluster's schema registry, `client.schemas`."""

    def __init__(self, call: Call, known: RecentDict[SchemaRef, Schema]) -> None:
        self._call = call
        self._known = known  # the client's

    async def register(
        self,
        subject: str,
        schema_type: str,
        definition: bytes | str,
        *,
        description: str = "",
        created_by: str = "",
        tags: tuple[str, ...] = (),
    ) -> Registered:
        """Register a schema and return its version. An equal one keeps its version.

        New subjects compare JSON Schemas strictly.

        Raises:
            SchemaInvalid: it does not parse at `details["path"]`.
            SchemaIncompatible: `details["differences"]` lists all of them.
        """
        check_text("subject", subject)
        check_text("schema_type", schema_type)
        check_text("description", description)
        check_text("created_by", created_by)
        check_texts("tags", tags, MOST)
        if not isinstance(definition, bytes):
            check_text("definition", definition)
        request = pb.RegisterSchemaRequest(
            subject=subject,
            schema_type=schema_type,
            schema_definition=definition.encode() if isinstance(definition, str) else definition,
            description=description,
            created_by=created_by,
            tags=tags,
        )
        made = pb.RegisterSchemaResponse.FromString(await self._ask("RegisterSchema", request))
        return Registered(
            subject=subject,
            ref=SchemaRef(made.schema_id, made.version),
            is_new_version=made.is_new_version,
            fingerprint=made.fingerprint,
        )

    async def latest(self, subject: str) -> Schema:
        """Return the newest version, fetched at each call. Raises `SchemaNotFound`."""
        check_text("subject", subject)
        request = pb.GetLatestSchemaRequest(subject=subject)
        return self._remember(await self._ask("GetLatestSchema", request))

    async def get(self, ref: SchemaRef) -> Schema:
        """Return the version that a message names (`message.schema`). Raises `SchemaNotFound`."""
        if (known := self._known.use(ref)) is not None:
            return known
        request = pb.GetSchemaRequest(schema_id=ref.schema_id)
        if ref.schema_version:
            request.version = ref.schema_version
        return self._remember(await self._ask("GetSchema", request))

    async def decode(self, message: Any, *, into: Callable[..., Any] | None = None) -> Any:
        """Return a message's payload decoded by its schema: text, JSON value, Avro datum, Protobuf message, or bytes.

        Without a schema, and for the formats bytes and number (which do not define the meaning of their bytes), it is
        the payload. For an Avro container file it is the list of its data, for a null payload None.

        Args:
            into: a class made of the value: a Protobuf message class (which Protobuf needs), a dataclass, a pydantic
                model or a typed dict, whose type hints are checked, or anything that takes the fields by keyword.

        Raises:
            SchemaNotFound: the version was deleted.
            PayloadInvalid: the payload is not of its schema.
            MissingExtra: Avro without fastavro.
        """
        if message.is_null:
            return None
        ref: SchemaRef | None = message.schema
        payload = bytes(message.payload)
        schema = None if ref is None else await self.get(ref)
        return _made(value_of(schema, payload, into), into)

    async def _ask(self, method: str, request: Message) -> bytes:
        from pydanube_core.services import SCHEMA_REGISTRY  # builds the classes of every .proto file

        return await self._call(SCHEMA_REGISTRY[method].path, request.SerializeToString(), TIMEOUT_S)

    def _remember(self, data: bytes) -> Schema:
        found = pb.GetSchemaResponse.FromString(data)
        schema = Schema(
            ref=SchemaRef(found.schema_id, found.version),
            subject=found.subject,
            schema_type=found.schema_type,
            definition=found.schema_definition,
            fingerprint=found.fingerprint,
            compatibility_mode=found.compatibility_mode,
            description=found.description,
            created_by=found.created_by,
            created_at=from_ms(found.created_at * 1000),
            tags=tuple(found.tags),
        )
        self._known[schema.ref] = schema
        return schema


def value_of(schema: Schema | None, payload: bytes, into: Callable[..., Any] | None) -> Any:
    kind = "bytes" if schema is None else schema.schema_type
    try:
        match kind:
            case "string":
                return payload.decode()
            case "json_schema":
                import json

                return json.loads(payload.decode())
            case "avro":
                assert schema is not None
                return _avro(schema, payload)
            case "protobuf":
                parse = getattr(into, "FromString", None)
                if parse is None:
                    raise InvalidArgument(
                        "a Protobuf payload is read by a class of the application: decode(message, into=YourMessage)",
                        field="into",
                        value=None,
                    )
                return parse(payload)
            case _:
                return payload
    except (ValueError, DecodeError, RecursionError) as error:
        subject = "" if schema is None else schema.subject
        raise PayloadInvalid(
            f"the payload is not of its schema ({subject}, {kind}): {str(error)[:200]}",
            field="payload",
            value=None,
            subject=subject,
        ) from error


def _made(value: Any, into: Callable[..., Any] | None) -> Any:
    if into is None or hasattr(into, "FromString"):
        return value
    return built(value, into)


def _avro(schema: Schema, payload: bytes) -> Any:
    # Imported here: it took two thirds of the time to import this module, also without any Avro
    from pydanube_core.schema_formats.avro.model import is_recursive
    from pydanube_core.schema_formats.avro.parse import parse_avro
    from pydanube_core.schema_formats.avro.steps import CONTAINER_MAGIC

    try:
        import fastavro
        from fastavro import _read_py
    except ImportError as error:
        raise MissingExtra(
            f"Avro payloads need fastavro: {install_command('schema')}", extra="schema"
        ) from error
    if not schema._parsed:
        import json

        raw = json.loads(schema.definition)
        schema._parsed[:] = [fastavro.parse_schema(raw), is_recursive(parse_avro(raw))]
    parsed, recursive = schema._parsed
    # fastavro recurses in C, and deep data of a recursive schema crash the process (seen, 1.13). Its Python twin reads
    # those, and raises RecursionError.
    library: Any = _read_py if recursive else fastavro
    try:
        if payload.startswith(CONTAINER_MAGIC):
            try:
                return list(library.reader(io.BytesIO(payload), parsed))
            except _FAULTS as fault:
                try:  # a datum may begin with the same four bytes
                    return _datum(library, parsed, payload)
                except _FAULTS:
                    raise fault from None
        return _datum(library, parsed, payload)
    except _FAULTS as error:
        raise ValueError(str(error) or "it ends too early") from error


def _datum(library: Any, parsed: Any, payload: bytes) -> Any:
    source = io.BytesIO(payload)
    datum = library.schemaless_reader(source, parsed, None)
    if source.tell() != len(payload):
        raise ValueError(f"{len(payload) - source.tell()} bytes are left over")
    return datum
