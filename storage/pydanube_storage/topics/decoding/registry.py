"""Read the schemas of payloads from the broker's registry. A version never changes.

The driver reads the version that defines the column. Tasks read the versions that messages were written with, because
versions may be registered while a stream runs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pydanube_core.errors import InvalidArgument, SchemaNotFound

from pydanube_storage.topics.decoding.fault import Fault, Format, Plain
from pydanube_storage.topics.query import Broker

_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a subject. `definition` has the registered bytes."""

    subject: str
    version: int
    schema_type: str
    definition: bytes


def latest_version(broker: Broker, topic: str, subject: str | None) -> Version:
    """Return the version that defines the column: the latest of `subject`, by default the topic's.

    Raises:
        TopicNotFound, SchemaNotFound, Unavailable. InvalidArgument: the topic has no schema and `subject` is None.
    """
    return _asked(broker, "schemas.get", {"subject": subject or _subject(broker, topic)})


def versions_of(broker: Broker, subject: str) -> list[int]:
    """Return the subject's last 100 versions at most, newest first."""
    page = broker.ask("schemas.versions", {"subject": subject, "limit": 100})
    return sorted((item["version"] for item in page["items"]), reverse=True)


def version_of(broker: Broker, subject: str, version: int) -> Version:
    return _asked(broker, "schemas.get", {"subject": subject, "version": version})


@lru_cache(maxsize=_KEPT)
def version_of_id(broker: Broker, schema_id: int, version: int | None) -> Version | str:
    """Return the version that a message names, or the reason as text if it was deleted.

    Raises `Unavailable` if no broker answers, which fails the task and not the message.
    """
    asked: dict[str, Any] = {"schema_id": str(schema_id)}
    if version:
        asked["version"] = version
    try:
        return _asked(broker, "schemas.get_by_id", asked)
    except SchemaNotFound as error:
        return error.message


def _subject(broker: Broker, topic: str) -> str:
    found = broker.ask("topics.get_schema_config", {"topic": topic})["schema_subject"]
    if found is None:
        raise InvalidArgument(
            f"{topic} has no schema to decode by: give the topic one (danube topics configure-schema)",
            field="decode",
            value=True,
            topic=topic,
        )
    return str(found)


def _asked(broker: Broker, operation: str, arguments: Mapping[str, Any]) -> Version:
    found = broker.ask(operation, arguments)
    text = found["untrusted"].get("schema_definition")
    if text is None:
        definition = base64.b64decode(found["untrusted"]["schema_definition_base64"])
    else:
        definition = text.encode()
    return Version(
        subject=found["subject"],
        version=found["version"],
        schema_type=found["schema_type"],
        definition=definition,
    )


@lru_cache(maxsize=32)
def format_of(version: Version) -> Format:
    """Return the column's format by the version's schema type.

    Raises `MissingExtra` if the format's library is not installed, and `Fault` if no column can hold the type.
    """
    match version.schema_type:
        case "avro":
            from pydanube_storage.topics.decoding.avro import AvroFormat

            return AvroFormat(version.definition)
        case "json_schema":
            from pydanube_storage.topics.decoding.json_schema import JsonFormat

            return JsonFormat(version.definition)
        case "protobuf":
            from pydanube_storage.topics.decoding.protobuf import ProtobufFormat

            return ProtobufFormat(version.definition)
        case "string":
            return Plain(pa.string(), bytes.decode)
        case _:
            return Plain(pa.binary(), bytes)


@lru_cache(maxsize=_KEPT)
def reading(reader: Version, writer: Version) -> Callable[[bytes], Any] | str:
    """Return the function that reads payloads of one version as another, or the reason as text if that is impossible."""
    if writer.schema_type != reader.schema_type:
        return (
            f"{writer.subject} version {writer.version} is {writer.schema_type}, {reader.subject} version "
            f"{reader.version} is {reader.schema_type}"
        )
    try:
        return format_of(reader).reading(writer.definition)
    except Fault as fault:
        return (
            f"{writer.subject} version {writer.version} cannot be read as version {reader.version}: {fault}"
        )
