"""Values with the framing of a schema registry of Kafka: a zero byte, the id of a schema in four bytes, the encoded value.

Avro values are read with the schema that they were written with, and resolved to the newest schema of their subject, which the
topic gets. JSON values lose their framing. Protobuf is refused.
"""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from typing import Any, Final

import anyio
import fastavro
from pydanube_core.errors import ClusterError, InvalidArgument, Unauthenticated

from pydanube_connect.connector import SchemaOffer
from pydanube_connect.records import RetryLater

_ANSWER_S: Final = 10.0
_MOST_BYTES: Final = 4 << 20  # of an answer
_MOST_SCHEMAS: Final = 1_000


class Unreadable:
    """A value that does not have the form of its schema. No topic takes it, so it becomes a dead letter."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return self.reason


class SchemaRegistry:
    """Reads framed values. Schemas are fetched once."""

    def __init__(self, url: str, username: str | None, password: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if username is not None:
            token = base64.b64encode(f"{username}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        self._by_id: dict[int, tuple[str, Any]] = {}  # kind, parsed schema
        self._newest: dict[str, tuple[str, str, Any]] = {}  # by topic of Kafka: kind, text, parsed schema

    async def check(self) -> None:
        """Reach the registry. Raises as `value` does."""
        await self._get("/subjects")

    def offer(self, topic: str) -> SchemaOffer | None:
        """Return the newest schema of a topic whose values were read, or None if they have none."""
        found = self._newest.get(topic)
        return SchemaOffer(f"{_subject(topic)}", found[0], found[1]) if found else None

    async def value(self, topic: str, framed: bytes) -> Any:
        """Return the value of a record. Values without the framing are returned unchanged.

        Raises:
            ClusterError: the registry refuses the request, or has no such schema.
            RetryLater: the registry cannot be reached now, or the topic has a newer schema than at the last `offer`.
        """
        if len(framed) < 5 or framed[0] != 0:
            return framed
        number = int.from_bytes(framed[1:5], "big")
        if number not in self._by_id or topic not in self._newest:
            await self._fetch(topic, number)
        kind, written = self._by_id[number]
        newest = self._newest[topic]
        if kind != "avro":
            return framed[5:]
        try:
            return fastavro.schemaless_reader(io.BytesIO(framed[5:]), written, newest[2])
        except (
            ValueError,
            TypeError,
            EOFError,
            IndexError,
            KeyError,
            fastavro.read.SchemaResolutionError,
        ) as error:
            return Unreadable(f"a value of {topic} cannot be read with its schema: {error}")

    async def _fetch(self, topic: str, number: int) -> None:
        answer = await self._get(f"/subjects/{topic}-value/versions/latest")
        newest = (_kind(answer), answer["schema"], _parsed(answer))
        before = self._newest.get(topic)
        self._newest[topic] = newest
        if before is not None and before[1] != newest[1]:
            # The producers write the former schema, which may lack fields of this one. The next ones write this one.
            raise RetryLater(0.0, f"{topic} has a new schema")
        if len(self._by_id) >= _MOST_SCHEMAS:
            self._by_id.clear()
        answer = await self._get(f"/schemas/ids/{number}")
        self._by_id[number] = (_kind(answer), _parsed(answer))

    async def _get(self, path: str) -> Any:
        request = urllib.request.Request(self._url + path, headers=self._headers)

        def fetch() -> Any:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
                return json.loads(answer.read(_MOST_BYTES))

        try:
            return await anyio.to_thread.run_sync(fetch)
        except urllib.error.HTTPError as error:
            error.close()
            text = f"the schema registry {self._url} answers {error.code} to {path}"
            if error.code in (401, 403):
                raise Unauthenticated(
                    f"{text}. Correct settings.registry_username and registry_password."
                ) from None
            if error.code == 404:
                raise _wrong(f"{text}. Correct settings.schema_registry.") from None
            raise RetryLater(reason=text) from None
        except (OSError, ValueError) as error:
            raise RetryLater(reason=f"the schema registry {self._url} cannot be read: {error}") from None


def _wrong(text: str) -> ClusterError:
    return InvalidArgument(text, field="settings.schema_registry", value=None)


def _kind(answer: dict[str, Any]) -> str:
    kind = answer.get("schemaType", "AVRO")
    if kind == "PROTOBUF":
        raise _wrong(
            "a schema is Protobuf, which this source does not read. Leave settings.schema_registry out to copy bytes."
        )
    return "avro" if kind == "AVRO" else "json_schema"


def _parsed(answer: dict[str, Any]) -> Any:
    if answer.get("references"):
        raise _wrong(
            "a schema refers to other subjects, which this source does not follow. Leave settings.schema_registry out."
        )
    return fastavro.parse_schema(json.loads(answer["schema"])) if _kind(answer) == "avro" else None


def _subject(topic: str) -> str:
    return "".join(each if each.isalnum() or each in "_-" else "_" for each in topic) + "-value"
