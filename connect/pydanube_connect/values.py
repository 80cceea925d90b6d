"""Decode payloads and encode values with the schemas of the registry.

A message without a schema holds JSON. A message with the attribute `danube-null` is a deletion: its value is None.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pydantic_core import from_json, to_json
from pydanube import Client, SchemaRef
from pydanube.payloads.serialising import payload_check, serialiser
from pydanube.schemas import Schema, value_of
from pydanube_core.errors import PayloadInvalid

Reader = Callable[[bytes], Any]
Writer = Callable[[Any], bytes]

_SEPARATOR: Final = secrets.token_hex(8)
_BETWEEN: Final = f',"{_SEPARATOR}",'.encode()
#: maximum schema versions in the cache. At this size it is emptied, and versions are fetched again.
_KEPT: Final = 1_000


class Readers:
    """Cache of payload readers by schema version."""

    def __init__(self, client: Client | None) -> None:
        self._client = client
        self._readers: dict[SchemaRef, Reader] = {}

    async def prepare(self, refs: Iterable[SchemaRef | None]) -> None:
        """Fetch the schemas that are not cached yet. Raises `SchemaNotFound`."""
        for ref in set(refs) - self._readers.keys() - {None}:
            assert ref is not None
            assert self._client is not None, "records with a schema come from a cluster"
            if len(self._readers) >= _KEPT:
                self._readers.clear()
            self._readers[ref] = _reader(await self._client.schemas.get(ref))

    def only_json(self, refs: Iterable[SchemaRef | None]) -> bool:
        """Return whether the payloads of all these prepared schemas are read as JSON."""
        return all(self.of(ref) is json_value for ref in set(refs))

    def of(self, ref: SchemaRef | None) -> Reader:
        """Return the reader of a prepared schema. It raises `PayloadInvalid`, `InvalidArgument` or `MissingExtra`."""
        return json_value if ref is None else self._readers[ref]


def json_value(payload: bytes) -> Any:
    """Return the JSON value of a payload.

    Raises:
        PayloadInvalid: the payload is not JSON.
    """
    try:
        return from_json(payload, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise PayloadInvalid(f"the payload is no JSON: {error}", field="payload", value=None) from None


def json_values(payloads: Sequence[bytes]) -> list[Any] | None:
    """Return the JSON values of payloads, parsed in one call. None if a payload is not exactly one JSON value.

    A value that no payload can contain stands between the payloads, so no two of them are read as one or as three.
    """
    try:
        found = from_json(b"[%b]" % _BETWEEN.join(payloads), allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return None
    between = len(payloads) - 1
    whole = len(found) == between + len(payloads) and found[1::2].count(_SEPARATOR) == between
    return found[::2] if whole else None


def _reader(schema: Schema) -> Reader:
    if schema.schema_type == "json_schema":
        return json_value
    return lambda payload: value_of(schema, payload, None)


def json_payload(value: Any) -> bytes:
    """Return a value as JSON. Decimals and times become exact texts, and bytes become base64.

    Raises:
        PayloadInvalid: JSON cannot represent the value.
    """
    try:
        return to_json(value, bytes_mode="base64", inf_nan_mode="constants")
    except ValueError as error:
        raise PayloadInvalid(f"the value is no JSON: {error}", field="value", value=None) from None


def writer(schema: Schema | None) -> Writer:
    """Return a function from values to payloads. It returns bytes unchanged, after it has checked them by the schema.

    The broker checks them too, but its refusal of one record takes the records beside it along.
    """
    if schema is None:
        return lambda value: value if type(value) is bytes else json_payload(value)
    encode, check = serialiser(schema), payload_check(schema)

    def checked(value: Any) -> bytes:
        if not isinstance(value, bytes):
            return encode(value)
        check(value)
        return value

    return checked
