"""The formats of schemas: parsing, fingerprints, compatibility and checks of payloads.

Fingerprints are those of docs/research/data-plane.md#113-identity-and-versions: SHA-256 over canonical JSON for Avro and
JSON Schema, over the raw text for Protobuf, and the name of the type for the others, which ignore their definition.

The libraries of a format are imported for its first schema, because most brokers have none and start faster without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

from pydanube_core.errors import PayloadInvalid, SchemaInvalid

from pydanube_broker.schema.differences import Difference, Direction, directions, merged
from pydanube_broker.schema.json_text import canonical, parse_definition
from pydanube_broker.schema.vocabulary import CompatibilityMode, JsonProfile, SchemaType

if TYPE_CHECKING:
    import jsonschema_rs
    from pydanube_core.schema_formats.avro.model import AvroType
    from pydanube_core.schema_formats.protobuf.descriptors import ProtoFile

    from pydanube_broker.schema.json_schema.document import Document

MAX_DEFINITION_BYTES: Final = 200_000  # the metadata store allows 256 KiB per value, 512 KiB per transaction
NUMBER_BYTES: Final = (4, 8)

MAX_WORK: Final = 2_000_000  # checks × bytes per payload in the broker's process: ≈ 25 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadCheck:
    """The check of payloads against a version.

    `weight` is the maximum number of checks per byte. A payload above `MAX_WORK` is checked against `schema` in another
    process (`payload_process`).
    """

    run: Callable[[bytes], None]
    weight: float = 0.0
    schema: bytes = b""

    def __call__(self, payload: bytes) -> None:
        """Check a payload against the schema. Raises `PayloadInvalid`."""
        self.run(payload)

    def is_costly(self, payload_bytes: int) -> bool:
        return self.weight * payload_bytes > MAX_WORK


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSchema:
    """A schema of type bytes, string or number, whose definition is not parsed."""

    type: SchemaType

    @property
    def fingerprint(self) -> str:
        return self.type.value


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroSchema:
    text: bytes
    tree: AvroType
    fingerprint: str
    type: SchemaType = SchemaType.AVRO


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema:
    text: bytes
    document: Document
    validator: jsonschema_rs.Validator
    fingerprint: str
    type: SchemaType = SchemaType.JSON_SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufSchema:
    file: ProtoFile
    descriptors: bytes  # FileDescriptorSet
    fingerprint: str
    type: SchemaType = SchemaType.PROTOBUF


ParsedSchema: TypeAlias = PlainSchema | AvroSchema | JsonSchema | ProtobufSchema


def parse_schema(kind: SchemaType, definition: bytes, *, descriptors: bytes | None = None) -> ParsedSchema:
    """Parse a definition.

    Args:
        kind: its format.
        definition: as registered.
        descriptors: for Protobuf, the result of `compile_proto` for this definition.

    Raises:
        SchemaInvalid: `details["path"]` is the place of the error.
    """
    if len(definition) > MAX_DEFINITION_BYTES:
        raise SchemaInvalid(
            f"the schema has {len(definition)} bytes, at most {MAX_DEFINITION_BYTES} are taken",
            field="schema_definition",
            value=len(definition),
            limit=MAX_DEFINITION_BYTES,
        )
    match kind:
        case SchemaType.BYTES | SchemaType.STRING | SchemaType.NUMBER:
            return PlainSchema(type=kind)
        case SchemaType.AVRO:
            from pydanube_core.schema_formats.avro.parse import parse_avro

            value = parse_definition(definition, what="the Avro schema")
            tree = parse_avro(value)
            _second_opinion(value)
            return AvroSchema(text=definition, tree=tree, fingerprint=_sha256(canonical(value)))
        case SchemaType.JSON_SCHEMA:
            from pydanube_broker.schema.json_schema.document import parse_json_schema

            value = parse_definition(definition, what="the JSON Schema")
            document, validator = parse_json_schema(value)
            return JsonSchema(
                text=definition, document=document, validator=validator, fingerprint=_sha256(canonical(value))
            )
        case SchemaType.PROTOBUF:
            from pydanube_core.schema_formats.protobuf.descriptors import parse_descriptors

            assert descriptors is not None, "a Protobuf schema is compiled before it is parsed"
            return ProtobufSchema(
                file=parse_descriptors(descriptors), descriptors=descriptors, fingerprint=_sha256(definition)
            )
    assert_never(kind)


def _second_opinion(value: Any) -> None:
    """Check that fastavro, the library of consumers, accepts the schema too."""
    import fastavro.schema

    try:
        fastavro.schema.parse_schema(value, _write_hint=False)
    except Exception as error:
        raise SchemaInvalid(
            f"the Avro schema is wrong: {str(error)[:300]}", field="schema_definition", path="/", value=None
        ) from None


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def differences_between(
    old: ParsedSchema,
    new: ParsedSchema,
    mode: CompatibilityMode,
    *,
    profile: JsonProfile = JsonProfile.DEFAULT,
) -> tuple[Difference, ...]:
    """Return every difference that breaks the compatibility mode, each once. Empty if there is none."""
    wanted = directions(mode)
    if wanted and old.type is not new.type:
        return (Difference(path="", rule="schema_type_changed", before=old.type.value, after=new.type.value),)
    try:
        return merged(_one_way(old, new, direction, profile) for direction in wanted)
    except RecursionError:
        return (Difference(path="", rule="too_deep_to_compare", before=None, after=None),)


def _one_way(
    old: ParsedSchema, new: ParsedSchema, direction: Direction, profile: JsonProfile
) -> list[Difference]:
    match old, new:
        case AvroSchema(), AvroSchema():
            from pydanube_broker.schema.avro.resolution import resolve

            writer, reader = (old, new) if direction is Direction.BACKWARD else (new, old)
            return resolve(writer.tree, reader.tree, direction)
        case JsonSchema(), JsonSchema():
            from pydanube_broker.schema.json_schema.default_profile import compare_by_default
            from pydanube_broker.schema.json_schema.strict_profile import compare_strictly

            compare = compare_strictly if profile is JsonProfile.STRICT else compare_by_default
            return compare(old.document, new.document, direction)
        case ProtobufSchema(), ProtobufSchema():
            from pydanube_broker.schema.protobuf.compat import compare_protobuf

            return compare_protobuf(old.file, new.file, direction)
        case _:
            return []


def admit_schema(parsed: ParsedSchema) -> None:
    """Refuse a valid schema that is too expensive to use, before it is registered. Raises `SchemaInvalid`."""
    if isinstance(parsed, JsonSchema):
        from pydanube_broker.schema.json_schema.cost import admit

        admit(parsed.document)


def payload_check(schema: ParsedSchema) -> PayloadCheck:
    """Build the check of payloads against a schema. Callers build it once per version and reuse it."""
    match schema:
        case PlainSchema(type=SchemaType.STRING):
            return PayloadCheck(run=_check_string)
        case PlainSchema(type=SchemaType.NUMBER):
            return PayloadCheck(run=_check_number)
        case PlainSchema():
            return PayloadCheck(run=_check_nothing)
        case AvroSchema(tree=tree, text=text):
            from pydanube_broker.schema.avro.payload import AvroPayload

            return PayloadCheck(run=AvroPayload(tree, text).check)
        case JsonSchema(validator=validator, document=document, text=text):
            from pydanube_broker.schema.json_schema.cost import weight
            from pydanube_broker.schema.json_schema.payload import JsonPayload

            return PayloadCheck(run=JsonPayload(validator).check, weight=weight(document), schema=text)
        case ProtobufSchema(file=file):
            from pydanube_broker.schema.protobuf.payload import ProtoPayload

            return PayloadCheck(run=ProtoPayload(file).check)


def _check_nothing(payload: bytes) -> None:
    pass


def _check_string(payload: bytes) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        raise PayloadInvalid(
            f"the payload is not UTF-8 text (byte {error.start})", field="payload", value=error.start
        ) from None


def _check_number(payload: bytes) -> None:
    if len(payload) not in NUMBER_BYTES:
        raise PayloadInvalid(
            f"a number is 4 or 8 bytes, the payload has {len(payload)}", field="payload", value=len(payload)
        )
