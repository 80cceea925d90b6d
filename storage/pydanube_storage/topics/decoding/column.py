"""The columns `value` and `_decode_error` for a batch of messages. Runs on the workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pydanube_core.errors import PayloadInvalid

from pydanube_storage.topics.decoding.fault import FAULTS
from pydanube_storage.topics.decoding.registry import Version, format_of, reading, version_of_id
from pydanube_storage.topics.query import Broker

DECODED_ROWS: Final = 4096  # per record batch, because decoded rows are Python objects first
_TEXT_CHARS: Final = 300

Reading = Callable[[bytes], Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Decode a topic's payloads. With `fail` the first one that cannot be decoded fails the job."""

    broker: Broker
    reader: Version
    fail: bool = False

    def added_to(self, batch: Any) -> Any:
        """Return the batch with the two columns added.

        Raises:
            PayloadInvalid: with `fail`, a message cannot be decoded.
            Unavailable: the registry does not answer.
        """
        kind = format_of(self.reader).type
        values: list[Any] = []
        errors: list[str | None] = []
        rows = zip(
            batch.column("payload"),
            batch.column("schema_id").to_pylist(),
            batch.column("schema_version").to_pylist(),
            strict=True,
        )
        known: dict[tuple[int | None, int | None], Reading] = {}
        for payload, schema_id, version in rows:
            read = known.get((schema_id, version))
            if read is None:
                read = known[schema_id, version] = self._reading(schema_id, version)
            value, error = _decoded(read, payload.as_py())
            values.append(value)
            errors.append(error)
        column = _column(values, errors, kind)
        if self.fail:
            self._check(batch, errors)
        return pa.RecordBatch.from_arrays(
            [*batch.columns, column, pa.array(errors, pa.string())],
            names=[*batch.schema.names, "value", "_decode_error"],
        )

    def _reading(self, schema_id: int | None, version: int | None) -> Reading:
        if not schema_id:  # sent without a schema: read it by the topic's
            return reading(self.reader, self.reader)
        writer = version_of_id(self.broker, schema_id, version)
        return writer if isinstance(writer, str) else reading(self.reader, writer)

    def _check(self, batch: Any, errors: list[str | None]) -> None:
        for row, error in enumerate(errors):
            if error is not None:
                topic, partition, offset = (batch.column(n)[row].as_py() for n in range(3))
                where = topic if partition is None else f"{topic} partition {partition}"
                raise PayloadInvalid(
                    f"the message of {where} at offset {offset} cannot be decoded: {error}. Without on_error=fail it "
                    "would be null",
                    field="payload",
                    value=None,
                    topic=topic,
                    partition=partition,
                    offset=offset,
                )


def _decoded(read: Reading, payload: bytes | None) -> tuple[Any, str | None]:
    if payload is None:
        return None, None
    if isinstance(read, str):
        return None, read[:_TEXT_CHARS]
    try:
        return read(payload), None
    except FAULTS as error:
        return None, _said(error)


def _said(error: BaseException) -> str:
    said = str(error) if str(error) else type(error).__name__
    return said.encode("utf-8", "replace").decode()[:_TEXT_CHARS]


def _column(values: list[Any], errors: list[str | None], kind: Any) -> Any:
    """Return the values as Arrow. A value that the type cannot hold counts as not decodable."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, *FAULTS):
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, *FAULTS) as error:
                values[row], errors[row] = None, _said(error)
        return pa.array(values, kind)
