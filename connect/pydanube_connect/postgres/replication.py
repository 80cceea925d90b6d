"""A replication connection to PostgreSQL over psycopg's libpq. It reads the stream and reports the stored position.

psycopg does not implement the replication protocol. This module implements the three messages that it needs (PostgreSQL
documentation, "Streaming Replication Protocol").
"""

from __future__ import annotations

import struct
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
from psycopg import pq, sql

from pydanube_connect.postgres.connecting import Connection
from pydanube_connect.records import RetryLater

_WITH_MESSAGES: Final = 140_000  # the version of PostgreSQL that sends messages of applications
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


def time_of(us: int) -> datetime:
    """Return the datetime of a protocol timestamp in microseconds."""
    return EPOCH + timedelta(microseconds=us)


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


class Replication:
    """The stream of one slot. Call `open` first."""

    def __init__(self, dsn: str) -> None:
        self._connection = Connection(dsn, replication="database")
        self.stored_lsn = 0  # everything below is stored, so the server may discard it
        self.seen_lsn = 0  # the server has sent everything below

    async def open(self) -> None:
        await self._connection.open()

    async def close(self) -> None:
        await self._connection.close()

    @property
    def _pg(self) -> pq.abc.PGconn:
        return self._connection.opened.pgconn

    async def create_slot(self, slot: str) -> tuple[int, str]:
        """Create a slot. Return its first LSN, and the name of a snapshot of the rows before it.

        The snapshot is valid until the stream starts.
        """
        text = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput").format(sql.Identifier(slot)).as_string()
        result = self._pg.exec_(text.encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise RetryLater(reason=f"the slot {slot} cannot be made: {_said(result)}")
        lsn, snapshot = result.get_value(0, 1), result.get_value(0, 2)
        assert lsn is not None
        assert snapshot is not None
        return lsn_of(lsn.decode()), snapshot.decode()

    async def start(self, slot: str, lsn: int, publication: str) -> None:
        """Start the stream after `lsn`. Raises `RetryLater`, for example while another process uses the slot."""
        signals = sql.SQL(", messages 'true'" if self._pg.server_version >= _WITH_MESSAGES else "")
        text = (
            sql.SQL("START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {}{})")
            .format(sql.Identifier(slot), sql.SQL(lsn_text(lsn)), sql.Literal(f'"{publication}"'), signals)
            .as_string()
        )
        result = self._pg.exec_(text.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise RetryLater(reason=f"the slot {slot} cannot be read: {_said(result)}")
        self.stored_lsn = self.seen_lsn = lsn

    async def messages(self, wait_s: float, most_bytes: int) -> list[bytes]:
        """Return the pgoutput messages that have arrived. Wait for the first. Return [] if none arrives in time."""
        found: list[bytes] = []
        size = 0
        until = time.monotonic() + wait_s
        while size < most_bytes:
            got, data = self._pg.get_copy_data(1)
            if got > 0:
                message = self._take(bytes(data))
                if message is not None:
                    found.append(message)
                    size += len(message)
                continue
            if got < 0:
                raise RetryLater(reason=f"the stream of PostgreSQL ended: {self._pg.get_error_message()}")
            if found or time.monotonic() >= until:
                break
            with anyio.move_on_after(max(0.0, until - time.monotonic())):
                await anyio.wait_readable(self._pg.socket)
            self._pg.consume_input()
        return found

    def _take(self, data: bytes) -> bytes | None:
        if data[:1] == b"w":
            _, end, _ = struct.unpack_from(">QQq", data, 1)
            self.seen_lsn = max(self.seen_lsn, end)
            return data[25:]
        if data[:1] == b"k":
            end, _, wants_answer = struct.unpack_from(">QqB", data, 1)
            self.seen_lsn = max(self.seen_lsn, end)
            if wants_answer:
                self.report()
        return None

    def report(self) -> None:
        """Report `stored_lsn` to the server."""
        now_us = (datetime.now(UTC) - EPOCH) // timedelta(microseconds=1)
        lsn = self.stored_lsn
        self._pg.put_copy_data(b"r" + struct.pack(">QQQqB", lsn, lsn, lsn, now_us, 0))
        self._pg.flush()


def _said(result: pq.abc.PGresult) -> str:
    return (
        " ".join(result.error_message.decode(errors="replace").split())
        if isinstance(result.error_message, bytes)
        else " ".join(str(result.error_message).split())
    )
